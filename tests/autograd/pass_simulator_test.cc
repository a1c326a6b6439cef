// The rules under test: autograd/README.md, "Passes". Thousands of random graphs, each under a
// random order of delivery; a seed that fails can be run alone by --gtest_filter and kFirstSeed.
#include <gtest/gtest.h>

#include <functional>

#include "autograd/pass_simulator.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using std::chrono::seconds;

constexpr auto kForEver = Clock::duration::max();
constexpr uint64_t kFirstSeed = 1;
constexpr uint64_t kSeeds = repetitions(2500);

// A few contexts with a graph each, and the passes that are begun in them one after another.
struct Scenario {
  struct Context {
    ContextId id;
    int initiator;
    ModelGraph graph;
    int passes_left;
    std::vector<size_t> roots{};
    std::optional<PassId> current{};
  };

  Scenario(uint64_t seed, PassFaults faults, int contexts_at_most = 3, int passes_at_most = 3)
      : workers(1 + static_cast<int>(seed % 5)), sim(seed, workers, faults) {
    const size_t count = 1 + pick(sim.random, static_cast<size_t>(contexts_at_most));
    for (size_t i = 0; i < count; ++i) {
      contexts.push_back(
          {static_cast<ContextId>(i + 1), any_worker(),
           ModelGraph(sim.random, workers, 8 + pick(sim.random, 100)),
           1 + static_cast<int>(pick(sim.random, static_cast<size_t>(passes_at_most)))});
    }
    for (const Context& context : contexts) sim.add_context(context.id, &context.graph);
  }

  int any_worker() { return static_cast<int>(pick(sim.random, static_cast<size_t>(workers))); }

  const PassSimulator::Outcome* outcome(const PassId& pass) const {
    for (const auto& outcome : sim.outcomes) {
      if (outcome.pass == pass) return &outcome;
    }
    return nullptr;
  }

  // Begins what can begin: the next pass of a context when its last one is complete. True when
  // something did; some wait for a while unless told not to.
  bool begin_some(bool wait_not = true, PassMode mode = PassMode::kExact,
                  Clock::duration patience = kForEver) {
    const Deadline deadline =
        patience == kForEver ? Deadline::never() : Deadline(sim.now + patience);
    const size_t before = begun.size();
    for (Context& context : contexts) {
      const bool busy = context.current && !outcome(*context.current);
      if (busy || context.passes_left == 0 || sim.is_dead(context.initiator)) continue;
      if (context.current && !wait_not && !chance(sim.random, 0.2)) continue;
      --context.passes_left;
      context.roots = context.graph.random_roots(sim.random, context.initiator);
      context.current = sim.begin(context.id, context.initiator, context.roots, mode, deadline);
      begun.push_back({*context.current, &context, context.roots});
    }
    return begun.size() != before;
  }

  // Begins passes and does what they want done until there is nothing left to do; timers come when
  // all else is done.
  void run(PassMode mode = PassMode::kExact, Clock::duration patience = kForEver,
           const std::function<void(size_t step)>& fault = nullptr) {
    for (size_t step = 0;; ++step) {
      begin_some(false, mode, patience);
      if (fault) fault(step);
      if (!sim.step() && !begin_some(true, mode, patience) && !sim.next_timer()) return;
    }
  }

  struct Begun {
    PassId pass;
    const Context* context;
    std::vector<size_t> roots;
  };
  int workers;
  PassSimulator sim;
  std::vector<Context> contexts;
  std::vector<Begun> begun;
};

// Every node that the whole graph says has run, once, with the gradient of all its paths.
void expect_right_gradients(const Scenario& scenario, const Scenario::Begun& begun) {
  const ModelGraph& graph = begun.context->graph;
  const std::vector<uint64_t> expected = graph.gradients(begun.roots);
  const std::set<size_t> reached = graph.reached(begun.roots, PassMode::kExact);
  const auto& got = scenario.sim.gradients.at(begun.pass);
  EXPECT_EQ(got.size(), reached.size());
  for (const size_t node : reached) {
    const auto found = got.find(node);
    ASSERT_NE(found, got.end()) << "node " << node << " did not run";
    EXPECT_EQ(found->second, expected[node]) << "node " << node;
  }
}

template <class Body>
void for_all_seeds(const Body& body) {
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    body(seed);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Passes, RunExactlyWhatTheRootsDependOn) {
  for_all_seeds([](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = seed % 2 ? 0.2 : 0.0});
    scenario.run();
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      ASSERT_FALSE(outcome->error) << outcome->error->what();
      expect_right_gradients(scenario, begun);
    }
    EXPECT_EQ(scenario.sim.outcomes.size(), scenario.begun.size());
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
}

TEST(Passes, AskAboutEachSendOnceAndAnswerEachQuestionOnce) {
  for_all_seeds([](uint64_t seed) {
    Scenario scenario(seed, {}, 1, 1);
    scenario.run();
    const auto& begun = scenario.begun.at(0);
    size_t gradients = 0;
    for (const size_t node : begun.context->graph.reached(begun.roots, PassMode::kExact)) {
      gradients += begun.context->graph.nodes[node].is_receive;
    }
    // A gradient and at most one question and one answer for each receive; a go and an end for each
    // other worker.
    EXPECT_LE(scenario.sim.messages, 3 * gradients + 2 * static_cast<size_t>(scenario.workers));
  });
}

TEST(Passes, EndForAllWhenSomethingFails) {
  size_t failed = 0, passed = 0;
  for_all_seeds([&](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1, .failing_node = 0.01, .failing_walk = 0.02});
    scenario.run();
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      if (!outcome->error) {
        ++passed;
        expect_right_gradients(scenario, begun);
        continue;
      }
      ++failed;
      const Code code = outcome->error->code();
      EXPECT_TRUE(code == Code::kRemote || code == Code::kNotFound) << outcome->error->what();
      EXPECT_EQ(outcome->error->worker().substr(0, 1), "w");
    }
    EXPECT_EQ(scenario.sim.outcomes.size(), scenario.begun.size()) << "told twice";
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
  EXPECT_GT(failed, kSeeds / 4);
  EXPECT_GT(passed, kSeeds / 4);
}

TEST(Passes, EndForAllWhenAWorkerDies) {
  size_t failed = 0;
  for_all_seeds([&](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1});
    const int victim = scenario.any_worker();
    const size_t when = pick(scenario.sim.random, 120);
    scenario.run(PassMode::kExact, kForEver, [&](size_t step) {
      if (step == when) scenario.sim.kill(victim);
    });
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      if (begun.pass.initiator == victim && !outcome) continue;
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      if (!outcome->error) {
        expect_right_gradients(scenario, begun);
        continue;
      }
      ++failed;
      EXPECT_EQ(outcome->error->code(), Code::kDisconnected) << outcome->error->what();
      EXPECT_EQ(outcome->error->worker(), "w" + std::to_string(victim));
    }
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
  EXPECT_GT(failed, kSeeds / 10);
}

TEST(Passes, EndForAllWhenAContextIsReleased) {
  size_t failed = 0;
  for_all_seeds([&](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1}, 2, 1);
    const int where = scenario.any_worker();
    const size_t when = pick(scenario.sim.random, 100);
    scenario.run(PassMode::kExact, kForEver, [&](size_t step) {
      if (step == when) scenario.sim.release(scenario.contexts[0].id, where);
    });
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      if (!outcome->error) continue;
      ++failed;
      EXPECT_EQ(begun.context, &scenario.contexts[0]);
      EXPECT_EQ(outcome->error->code(), Code::kCancelled);
      EXPECT_EQ(outcome->error->worker(), "w" + std::to_string(where));
    }
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
  EXPECT_GT(failed, kSeeds / 10);
}

// Whether a fast pass can end well: all sends of all workers that it reaches are used by it.
bool all_sends_take_part(const Scenario::Begun& begun) {
  const ModelGraph& graph = begun.context->graph;
  const std::set<size_t> reached = graph.reached(begun.roots, PassMode::kFast);
  for (const size_t node : reached) {
    if (!graph.nodes[node].is_send) continue;
    if (reached.count(graph.crossings.at(graph.nodes[node].send).second) == 0) return false;
  }
  return true;
}

TEST(FastPasses, EndWellWhenAllSendsTakePartAndByTheirDeadlineOtherwise) {
  size_t well = 0, late = 0;
  for_all_seeds([&](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = seed % 2 ? 0.2 : 0.0}, 2, 2);
    scenario.run(PassMode::kFast, seconds(10));
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      if (all_sends_take_part(begun)) {
        ++well;
        EXPECT_FALSE(outcome->error) << outcome->error->what();
        const std::vector<uint64_t> expected = begun.context->graph.gradients(begun.roots);
        for (const auto& [node, gradient] : scenario.sim.gradients.at(begun.pass)) {
          EXPECT_EQ(gradient, expected[node]);
        }
      } else {
        ++late;
        ASSERT_TRUE(outcome->error);
        EXPECT_EQ(outcome->error->code(), Code::kTimeout);
        EXPECT_NE(outcome->error->message().find("waits for"), std::string::npos);
      }
    }
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
  EXPECT_GT(well, kSeeds / 10);
  EXPECT_GT(late, kSeeds / 10);
}

TEST(FastPasses, EndForAllWhenSomethingFails) {
  for_all_seeds([](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1, .failing_node = 0.02, .failing_walk = 0.02}, 2, 2);
    scenario.run(PassMode::kFast, seconds(10));
    EXPECT_EQ(scenario.sim.outcomes.size(), scenario.begun.size());
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
}

TEST(FastPasses, EndForAllWhenAWorkerDies) {
  for_all_seeds([](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1}, 2, 1);
    const int victim = scenario.any_worker();
    const size_t when = pick(scenario.sim.random, 60);
    scenario.run(PassMode::kFast, seconds(10), [&](size_t step) {
      if (step == when) scenario.sim.kill(victim);
    });
    for (const auto& begun : scenario.begun) {
      EXPECT_TRUE(begun.pass.initiator == victim || scenario.outcome(begun.pass));
    }
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
}

// Messages vanish and nobody notices: the deadline ends the pass wherever it is known.
TEST(Passes, EndForAllByTheirDeadlineWhenMessagesVanish) {
  size_t late = 0;
  for_all_seeds([&](uint64_t seed) {
    Scenario scenario(seed, {.duplicates = 0.1, .loss = 0.1}, 3, 1);
    const PassMode mode = seed % 3 ? PassMode::kExact : PassMode::kFast;
    scenario.run(mode, seconds(10));
    for (const auto& begun : scenario.begun) {
      const auto* outcome = scenario.outcome(begun.pass);
      ASSERT_NE(outcome, nullptr) << scenario.sim.leftovers();
      if (!outcome->error) continue;
      ++late;
      EXPECT_EQ(outcome->error->code(), Code::kTimeout);
    }
    EXPECT_EQ(scenario.sim.leftovers(), "");
  });
  EXPECT_GT(late, kSeeds / 10);
}

}  // namespace
}  // namespace farspan::testing
