// The rules under test: optim/README.md, "Consistent".
#include <farspan/optim/step_gate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using optim::Fence;
using optim::GateActions;
using optim::Granted;
using optim::Refused;
using optim::StepGate;
using optim::Ticket;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ContextId = dist_autograd::ContextId;

// The `number`th context that worker `rank` has made.
ContextId context(int rank, uint64_t number = 1) {
  return ContextId((static_cast<uint64_t>(rank + 1) << 44) | number);
}
std::string name_of_rank(int rank) { return "w" + std::to_string(rank); }

// A gate, and what it has answered so far.
struct Answered {
  StepGate gate{name_of_rank};
  TimePoint now = TimePoint() + seconds(1000);
  std::map<Ticket, uint64_t> granted;
  std::map<Ticket, Error> refused;
  std::vector<Fence> fences;

  template <class Fn>
  auto run(Fn&& fn) {
    GateActions actions;
    struct Take {
      Answered& to;
      GateActions& actions;
      ~Take() {
        for (auto& action : actions) {
          if (auto* yes = std::get_if<Granted>(&action)) to.granted[yes->ticket] = yes->number;
          if (auto* no = std::get_if<Refused>(&action)) to.refused.emplace(no->ticket, no->why);
          if (auto* fence = std::get_if<Fence>(&action)) to.fences.push_back(*fence);
        }
      }
    } take{*this, actions};
    return fn(actions);
  }
  Ticket enter(ContextId c, int owner) {
    return run([&](GateActions& a) { return gate.enter(c, owner, now, a); });
  }
  Ticket step(ContextId c, int trainer, std::set<int> owners) {
    return run([&](GateActions& a) { return gate.request_step(c, trainer, owners, now, a); });
  }
  void leave(ContextId c, int owner) {
    run([&](GateActions& a) { gate.leave(c, owner, a); });
  }
  void done(Ticket t) {
    run([&](GateActions& a) { gate.step_done(t, a); });
  }
  void abandon(Ticket t) {
    run([&](GateActions& a) { gate.abandon_step(t, a); });
  }
  void part_ended(Ticket t, int owner) {
    run([&](GateActions& a) { gate.part_ended(t, owner, a); });
  }
  void expire(Ticket t) {
    run([&](GateActions& a) { gate.expire(t, now, a); });
  }
  void lose(int rank) {
    run([&](GateActions& a) {
      gate.lose_worker(rank, Error(Code::kDisconnected, "w" + std::to_string(rank) + " died"), a);
    });
  }
  bool waits(Ticket t) const { return granted.count(t) == 0 && refused.count(t) == 0; }
  bool empty() const {
    const auto c = gate.counters();
    return c.contexts + c.entries + c.steps == 0;
  }
};

TEST(StepGate, ContextsUseParametersTogether) {
  Answered g;
  EXPECT_FALSE(g.waits(g.enter(context(1), 0)));
  EXPECT_FALSE(g.waits(g.enter(context(2), 0)));
  // Expect: entering again is nothing new.
  EXPECT_FALSE(g.waits(g.enter(context(1), 0)));
  g.leave(context(1), 0);
  g.leave(context(2), 0);
  EXPECT_TRUE(g.empty());
}

TEST(StepGate, AStepWaitsForTheContextsOfOthersOnly) {
  Answered g;
  g.enter(context(1), 0);
  g.enter(context(2), 0);
  g.enter(context(3), 5);  // elsewhere
  const Ticket step = g.step(context(1), 1, {0});
  EXPECT_TRUE(g.waits(step));
  g.leave(context(2), 0);
  EXPECT_FALSE(g.waits(step));
}

TEST(StepGate, TwoTrainersThatStepAtOnceTakeTurns) {
  Answered g;
  g.enter(context(1), 0);
  g.enter(context(2), 0);
  const Ticket first = g.step(context(1), 1, {0});
  const Ticket second = g.step(context(2), 2, {0});
  // Expect: asking has ended both contexts; the first goes, the second after it.
  EXPECT_EQ(g.granted.at(first), 1u);
  EXPECT_TRUE(g.waits(second));
  g.done(first);
  EXPECT_EQ(g.granted.at(second), 2u);
  g.done(second);
  EXPECT_TRUE(g.empty());
}

TEST(StepGate, StepsOfDifferentOwnersDoNotWaitForEachOther) {
  Answered g;
  EXPECT_FALSE(g.waits(g.step(context(1), 1, {0})));
  EXPECT_FALSE(g.waits(g.step(context(2), 2, {5})));
}

TEST(StepGate, NewContextsQueueBehindAStepThatWaits) {
  Answered g;
  g.enter(context(1), 0);
  g.enter(context(2), 0);
  const Ticket step = g.step(context(1), 1, {0});
  const Ticket next = g.enter(context(1, 2), 0);
  EXPECT_TRUE(g.waits(next));
  // Expect: not those that were there before, also for an owner that is new to them.
  EXPECT_FALSE(g.waits(g.enter(context(2), 0)));
  g.leave(context(2), 0);
  EXPECT_FALSE(g.waits(step));
  EXPECT_TRUE(g.waits(next));
  g.done(step);
  EXPECT_FALSE(g.waits(next));
}

// Context 2 is older than the step and inside owner 0, so it is let in to owner 1 as well: were it
// to wait, the step would wait for it, and it for the step.
TEST(StepGate, AnOlderContextMayGoOnToOwnersOfAStepThatWaits) {
  Answered g;
  g.enter(context(1), 0);
  g.enter(context(2), 0);
  const Ticket step = g.step(context(1), 1, {0, 1});
  EXPECT_FALSE(g.waits(g.enter(context(2), 1)));
  g.leave(context(2), 0);
  EXPECT_TRUE(g.waits(step));
  g.leave(context(2), 1);
  EXPECT_FALSE(g.waits(step));
}

TEST(StepGate, NobodyEntersWhileAStepIsApplied) {
  Answered g;
  g.enter(context(2), 7);
  const Ticket step = g.step(context(1), 1, {0});
  const Ticket old = g.enter(context(2), 0);
  EXPECT_TRUE(g.waits(old));
  g.done(step);
  EXPECT_FALSE(g.waits(old));
}

// A stream of steps does not keep a context out, nor a stream of contexts a step.
TEST(StepGate, WhoeverWaitsComesBeforeThoseWhoCameLater) {
  Answered g;
  const Ticket first = g.step(context(1), 1, {0});
  const Ticket entry = g.enter(context(3), 0);
  const Ticket second = g.step(context(2), 2, {0});
  const Ticket late = g.enter(context(4), 0);
  g.done(first);
  EXPECT_FALSE(g.waits(entry));
  EXPECT_TRUE(g.waits(second));
  EXPECT_TRUE(g.waits(late));
  g.leave(context(3), 0);
  EXPECT_FALSE(g.waits(second));
  EXPECT_TRUE(g.waits(late));
  g.done(second);
  EXPECT_FALSE(g.waits(late));
}

TEST(StepGate, ADeadlineNamesWhatHoldsAStepUp) {
  Answered g;
  g.enter(context(1), 0);
  g.enter(context(2, 7), 0);
  g.enter(context(2, 7), 1);
  const Ticket step = g.step(context(1), 1, {0, 1});
  g.now += seconds(3);
  g.expire(step);
  const std::string text = g.refused.at(step).what();
  EXPECT_EQ(g.refused.at(step).code(), Code::kTimeout);
  EXPECT_THAT(text, HasSubstr("context 7 of worker 'w2'"));
  EXPECT_THAT(text, HasSubstr("'w0', 'w1'"));
  EXPECT_THAT(text, HasSubstr("3.00 s"));
  // Expect: it holds nothing up any more.
  EXPECT_FALSE(g.waits(g.enter(context(3), 0)));
}

TEST(StepGate, ADeadlineNamesWhatHoldsAContextUp) {
  Answered g;
  g.enter(context(2, 7), 0);
  g.step(context(1), 1, {0});
  const Ticket entry = g.enter(context(3), 0);
  g.expire(entry);
  EXPECT_THAT(g.refused.at(entry).what(), HasSubstr("the step of context 1 of worker 'w1'"));
  EXPECT_THAT(g.refused.at(entry).what(), HasSubstr("context 7 of worker 'w2'"));
}

TEST(StepGate, ADeadlineOfWhatHasHadItsTurnDoesNothing) {
  Answered g;
  const Ticket entry = g.enter(context(1), 0);
  const Ticket step = g.step(context(2), 2, {5});
  g.expire(entry);
  g.expire(step);
  EXPECT_TRUE(g.refused.empty());
  EXPECT_TRUE(g.waits(g.step(context(3), 3, {0})));
}

TEST(StepGate, AContextThatUsedTheParametersBeforeIsInside) {
  Answered g;
  g.gate.adopt(context(2), 0, g.now);
  const Ticket step = g.step(context(1), 1, {0});
  EXPECT_TRUE(g.waits(step));
  g.leave(context(2), 0);
  EXPECT_FALSE(g.waits(step));
}

TEST(StepGate, ALostWorkerHoldsNothingUp) {
  Answered g;
  g.enter(context(2), 0);                                // made by the one that dies
  g.enter(context(3), 2);                                // inside it
  const Ticket applied = g.step(context(2, 9), 2, {5});  // which it would have ended
  const Ticket queued = g.step(context(2, 8), 2, {5});
  const Ticket one = g.step(context(1), 1, {0});
  const Ticket two = g.step(context(1), 1, {2, 5});
  EXPECT_FALSE(g.waits(applied));
  EXPECT_TRUE(g.waits(one));
  EXPECT_TRUE(g.waits(two));
  g.lose(2);
  EXPECT_FALSE(g.waits(one));
  EXPECT_EQ(g.refused.at(queued).code(), Code::kDisconnected);
  // Expect: the owner may be applying its step, and is asked.
  EXPECT_TRUE(g.waits(two));
  g.part_ended(applied, 5);
  EXPECT_FALSE(g.waits(two));
  g.done(one);
  g.done(two);
  EXPECT_TRUE(g.empty());
}

TEST(StepGate, AnAbandonedStepIsOverWhenAllItsOwnersHaveEndedTheirParts) {
  Answered g;
  const Ticket first = g.step(context(1), 1, {0, 1, 2});
  const Ticket second = g.step(context(2), 2, {2});
  const Ticket entry = g.enter(context(3), 0);
  g.abandon(first);
  g.abandon(first);
  ASSERT_EQ(g.fences.size(), 3u);
  for (const Fence& fence : g.fences) EXPECT_EQ(fence.number, g.granted.at(first));
  g.part_ended(first, 2);
  g.part_ended(first, 2);
  g.lose(1);
  EXPECT_TRUE(g.waits(entry));
  EXPECT_TRUE(g.waits(second)) << "a context would see it on one owner, but not yet on another";
  g.expire(entry);
  EXPECT_THAT(g.refused.at(entry).what(), HasSubstr("given up, but 'w0' may still be applying"));
  g.part_ended(first, 0);
  EXPECT_FALSE(g.waits(second));
  g.done(second);
  EXPECT_TRUE(g.empty());
}

TEST(StepGate, AStepThatIsAbandonedWhileItWaitsIsGivenUp) {
  Answered g;
  g.enter(context(2), 0);
  const Ticket step = g.step(context(1), 1, {0});
  g.abandon(step);
  EXPECT_TRUE(g.fences.empty());
  EXPECT_FALSE(g.waits(g.enter(context(3), 0)));
}

// Trainers with random contexts over random owners, in any order of events. Checked from outside:
// what a context has read stays true until it ends, each step is alone, and all come to their end.
class GateWorld {
 public:
  explicit GateWorld(uint64_t seed) : random_(seed), trainers_(4), version_(kOwners) {}

  void run() {
    for (int i = 0; i < 200'000; ++i) {
      std::vector<size_t> able;
      for (size_t t = 0; t < trainers_.size(); ++t) {
        if (trainers_[t].left > 0 && !waits(trainers_[t])) able.push_back(t);
      }
      if (able.empty()) break;
      act(static_cast<int>(able[random_.below(able.size())]));
    }
    for (const Trainer& t : trainers_)
      ASSERT_EQ(t.left, 0) << "a circle of waiting, or a lost wake-up";
    EXPECT_TRUE(g_.empty());
  }

 private:
  static constexpr int kOwners = 4;
  struct Trainer {
    int left = 40;  // contexts
    uint64_t made = 0;
    int calls = 0;  // still to be made in this one
    std::map<int, int> read;
    std::optional<Ticket> asked;
    int entering = -1;
    std::set<int> changes;
    bool stepping = false;
  };

  bool waits(const Trainer& t) const { return t.asked && g_.waits(*t.asked); }
  int any_owner() { return static_cast<int>(random_.below(kOwners)); }

  void act(int rank) {
    Trainer& t = trainers_[static_cast<size_t>(rank)];
    const ContextId c = context(rank, t.made);
    if (t.entering >= 0) {  // has entered
      t.read.try_emplace(t.entering, version_[static_cast<size_t>(t.entering)]);
      t.entering = -1;
      t.asked.reset();
      for (const auto& [owner, version] : t.read) {
        ASSERT_EQ(version_[static_cast<size_t>(owner)], version) << "it reads two states";
      }
    } else if (t.stepping) {  // has its turn
      for (const int owner : t.changes) ++version_[static_cast<size_t>(owner)];
      for (const Trainer& other : trainers_) {
        if (&other == &t || other.stepping) continue;
        for (const auto& [owner, version] : other.read) {
          ASSERT_EQ(version_[static_cast<size_t>(owner)], version) << "changed under a context";
        }
      }
      g_.done(*t.asked);
      end(t, c);
    } else if (t.made == 0 || t.calls < 0) {
      ++t.made;
      t.calls = static_cast<int>(random_.below(5));
    } else if (t.calls-- > 0) {
      t.entering = any_owner();
      t.asked = g_.enter(c, t.entering);
    } else if (random_.chance(0.8)) {
      t.changes = {any_owner(), any_owner()};
      t.stepping = true;
      t.asked = g_.step(c, rank, t.changes);
    } else {
      end(t, c);
    }
  }
  void end(Trainer& t, ContextId c) {
    for (const auto& [owner, version] : t.read) g_.leave(c, owner);
    t.read.clear();
    t.asked.reset();
    t.stepping = false;
    t.calls = -1;
    --t.left;
  }

  SeededRandom random_;
  Answered g_;
  std::vector<Trainer> trainers_;
  std::vector<int> version_;
};

TEST(StepGateWorld, EveryContextReadsOneStateAndAllEnd) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    GateWorld(seed).run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace farspan::testing
