// The rules under test: autograd/executor.h and autograd/README.md, "Executor": the pass's life,
// its entries and boundaries. What nodes compute is tested in tests/parity/executor_*.
#include <farspan/autograd/executor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <thread>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "autograd/crossing.h"
#include "autograd/local_pass.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using dist_autograd::Boundary;
using dist_autograd::make_roots;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Progress = Executor::Progress;

at::Tensor leaf(at::IntArrayRef sizes = {4}) { return at::randn(sizes).requires_grad_(); }

std::vector<Boundary*> walk_from(Executor& pass, std::vector<std::shared_ptr<Node>> entries) {
  return pass.walk(entries);
}

// A pass whose boundaries are collected.
struct Collecting {
  explicit Collecting(ExecutorOptions options = {})
      : pass(options, leaves, [this](Boundary& boundary, variable_list gradients) {
          EXPECT_TRUE(left.emplace(&boundary, std::move(gradients)).second) << "handed over twice";
        }) {}
  std::shared_ptr<LeafGradients> leaves = std::make_shared<LeafGradients>();
  std::map<Boundary*, variable_list> left;
  Executor pass;
};

TEST(Executor, RunsNothingBeforeTheStart) {
  Collecting here;
  const at::Tensor a = leaf();
  here.pass.walk(make_roots({(a * 2).sum()}));
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  EXPECT_EQ(here.leaves->size(), 0u);
  here.pass.start();
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  EXPECT_EQ(here.pass.run(), Progress::kEnded);
  EXPECT_TRUE(at::equal(here.leaves->find(a), at::full({4}, 2.0)));
}

TEST(Executor, FinishesAtOnceWithNothingToDo) {
  Collecting here;
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
}

TEST(Executor, HandsTheGradientsOfABoundaryOver) {
  Collecting here;
  const at::Tensor a = leaf();
  const auto [node, in] = receive({at::ones({4}), at::ones({2, 2}), at::ones({3})});
  const at::Tensor root = (in[0] * a).sum() + (in[2] * 3).sum();  // in[1] is not used
  EXPECT_THAT(here.pass.walk(make_roots({root})), ElementsAre(node.get()));
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  ASSERT_EQ(here.left.count(node.get()), 1u);
  const variable_list& gradients = here.left[node.get()];
  ASSERT_EQ(gradients.size(), 3u);
  EXPECT_TRUE(at::equal(gradients[0], a.detach()));
  EXPECT_FALSE(gradients[1].defined());
  EXPECT_TRUE(at::equal(gradients[2], at::full({3}, 3.0)));
}

TEST(Executor, RunsHooksOfABoundary) {
  Collecting here;
  const auto [node, in] = receive({at::ones({4})});
  in[0].register_hook([](at::Tensor g) { return g * 10; });
  in[0].retain_grad();
  here.pass.walk(make_roots({in[0].sum()}));
  here.pass.start();
  here.pass.run();
  EXPECT_TRUE(at::equal(here.left[node.get()][0], at::full({4}, 10.0)));
  EXPECT_TRUE(at::equal(in[0].grad(), at::full({4}, 10.0)));
}

TEST(Executor, HandsABoundaryOverThoughItsGradientIsUndefined) {
  struct GivesNothing : torch::autograd::Function<GivesNothing> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x * 1;
    }
    static variable_list backward(torch::autograd::AutogradContext*, variable_list) {
      return {at::Tensor()};
    }
  };
  Collecting here;
  const auto [node, in] = receive({at::ones({4})});
  here.pass.walk(make_roots({(GivesNothing::apply(in[0])).sum()}));
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  ASSERT_EQ(here.left.count(node.get()), 1u);
  ASSERT_EQ(here.left[node.get()].size(), 1u);
  EXPECT_FALSE(here.left[node.get()][0].defined());
}

TEST(Executor, WaitsForTheGradientsOfItsEntries) {
  Collecting here;
  const at::Tensor a = leaf();
  const at::Tensor x = a * 2;
  const auto first = send({x.sin()}), second = send({x.cos(), a}), never_used = send({x.exp()});
  walk_from(here.pass, {first});
  walk_from(here.pass, {second});  // shares x with the first
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  here.pass.feed(second, {at::ones({4}), at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  EXPECT_FALSE(here.leaves->find(a).defined()) << "x and a still wait for the first";
  here.pass.feed(first, {at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  const at::Tensor x_now = x.detach();
  EXPECT_TRUE(at::allclose(here.leaves->find(a), (x_now.cos() - x_now.sin()) * 2 + 1));
}

TEST(Executor, TakesGradientsBeforeTheStart) {
  Collecting here;
  const at::Tensor a = leaf();
  const auto entry = send({a * 3});
  walk_from(here.pass, {entry});
  here.pass.feed(entry, {at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  EXPECT_TRUE(at::equal(here.leaves->find(a), at::full({4}, 3.0)));
}

TEST(Executor, TakesUndefinedGradients) {
  Collecting here;
  const at::Tensor a = leaf(), b = leaf();
  const auto entry = send({a * 3, b * 2});
  walk_from(here.pass, {entry});
  here.pass.feed(entry, {at::Tensor(), at::ones({4})});
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  EXPECT_FALSE(here.leaves->find(a).defined());
  EXPECT_TRUE(at::equal(here.leaves->find(b), at::full({4}, 2.0)));
}

TEST(Executor, ReportsABoundaryInTheWalkThatReachesItFirst) {
  Collecting here;
  const auto [node, in] = receive({at::ones({4})});
  const auto first = send({in[0] * 2}), second = send({in[0] * 3});
  EXPECT_THAT(walk_from(here.pass, {first}), ElementsAre(node.get()));
  EXPECT_THAT(walk_from(here.pass, {second}), IsEmpty());
  here.pass.start();
  here.pass.feed(first, {at::ones({4})});
  here.pass.run();
  EXPECT_TRUE(here.left.empty()) << "one gradient is still missing";
  here.pass.feed(second, {at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  EXPECT_TRUE(at::equal(here.left[node.get()][0], at::full({4}, 5.0)));
}

// A worker that calls itself, and calls itself again from there: one pass, its own entries.
TEST(Executor, FeedsItself) {
  const at::Tensor a = leaf(), b = leaf();
  const auto whole = [&] { return ((a * b).sin() * a).exp().sum(); };
  const Tensors theirs = engine_gradients({a, b}, {whole()});

  const at::Tensor product = a * b;
  const auto sent_once = send({product, a});
  const auto [received_once, in] = receive({product, a});
  const at::Tensor middle = in[0].sin() * in[1];
  const auto sent_again = send({middle});
  const auto [received_again, back] = receive({middle});

  auto leaves = std::make_shared<LeafGradients>();
  std::map<Boundary*, std::shared_ptr<Node>> matching = {{received_once.get(), sent_once},
                                                         {received_again.get(), sent_again}};
  std::unique_ptr<Executor> pass;
  pass = std::make_unique<Executor>(ExecutorOptions{}, leaves,
                                    [&](Boundary& boundary, variable_list gradients) {
                                      pass->feed(matching.at(&boundary), std::move(gradients));
                                      EXPECT_EQ(pass->run(), Progress::kElsewhere);
                                    });
  std::vector<Boundary*> reached = pass->walk(make_roots({back[0].exp().sum()}));
  while (!reached.empty()) {
    Boundary* boundary = reached.back();
    reached.pop_back();
    for (Boundary* further : walk_from(*pass, {matching.at(boundary)})) reached.push_back(further);
  }
  pass->start();
  EXPECT_EQ(pass->run(), Progress::kFinished);
  expect_same(leaves->find(a), theirs[0]);
  expect_same(leaves->find(b), theirs[1]);
}

// The order in which gradients came decides the order of a sum, not when the pass got to run.
TEST(Executor, SumsInTheOrderOfArrival) {
  const at::Tensor a = at::rand({64}).requires_grad_();
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < 7; ++i) gradients.push_back(at::randn({64}) * std::pow(10.0f, i));
  const auto sum = [&](bool run_between) {
    Collecting here;
    std::vector<std::shared_ptr<Node>> entries;
    for (int i = 0; i < 7; ++i) entries.push_back(send({(a * 1.1 * 0.9).view({8, 8}).view({64})}));
    here.pass.walk(entries);
    here.pass.start();
    for (const size_t i : {3, 0, 6, 1, 5, 2, 4}) {
      here.pass.feed(entries[i], {gradients[i]});
      if (run_between) here.pass.run();
    }
    here.pass.run();
    EXPECT_TRUE(here.pass.ended());
    return here.leaves->find(a);
  };
  EXPECT_TRUE(at::equal(sum(true), sum(false)));
}

TEST(Executor, RefusesGradientsThatItDoesNotWaitFor) {
  Collecting here;
  const at::Tensor a = leaf();
  const at::Tensor x = a * 2;
  const auto entry = send({x}), other = send({a * 3});
  walk_from(here.pass, {entry});
  const variable_list one = {at::ones({4})};
  EXPECT_EQ(error_of([&] { here.pass.feed(other, one); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { here.pass.feed(x.grad_fn(), one); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { here.pass.feed(nullptr, one); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { here.pass.feed(entry, {}); }).message(),
            "0 gradients came for 1 tensors");
  here.pass.feed(entry, one);
  const Error twice = error_of([&] { here.pass.feed(entry, one); });
  EXPECT_EQ(twice.operation(), "backward through SendNode");
  here.pass.start();
  EXPECT_EQ(here.pass.run(), Progress::kFinished) << "the refusals left the pass as it was";
}

TEST(Executor, FailsOnAGradientOfAWrongShape) {
  Collecting here;
  const auto entry = send({leaf({4}) * 2});
  walk_from(here.pass, {entry});
  here.pass.start();
  here.pass.feed(entry, {at::ones({5})});
  const Error error = error_of([&] { here.pass.run(); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.operation(), "backward through SendNode");
  EXPECT_NE(error.message().find("expected shape"), std::string::npos) << error.message();
}

TEST(Executor, RefusesToWalkAfterTheStart) {
  Collecting here;
  here.pass.start();
  EXPECT_EQ(error_of([&] { walk_from(here.pass, {send({leaf()})}); }).code(), Code::kInternal);
}

// Runs `inside` in its backward.
struct Runs : torch::autograd::Function<Runs> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 1;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    inside();
    return gradients;
  }
  inline static std::function<void()> inside;
};

TEST(Executor, EndsWithTheFirstErrorAndLetsTheGraphGo) {
  Collecting here;
  const at::Tensor a = leaf(), b = leaf();
  std::weak_ptr<Node> graph;
  {
    const auto [node, in] = receive({at::ones({4})});
    const at::Tensor root = (Runs::apply(in[0] * a) + b).sum();
    graph = root.grad_fn();
    here.pass.walk(make_roots({root}));
  }
  here.pass.start();
  Runs::inside = [] { throw std::runtime_error("enough"); };
  EXPECT_EQ(error_of([&] { here.pass.run(); }).message(), "enough");
  EXPECT_TRUE(graph.expired());
  EXPECT_TRUE(here.pass.ended());
  EXPECT_EQ(here.pass.run(), Progress::kEnded);
  EXPECT_TRUE(here.left.empty());
  EXPECT_FALSE(here.leaves->find(a).defined());
}

TEST(Executor, FailsWithWhatTheSinkThrows) {
  Executor pass({}, std::make_shared<LeafGradients>(), [](Boundary&, variable_list) {
    throw Error(Code::kDisconnected, "'w1' is gone").worker("w1");
  });
  const auto [node, in] = receive({at::ones({4})});
  pass.walk(make_roots({in[0].sum()}));
  pass.start();
  const Error error = error_of([&] { pass.run(); });
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(error.operation(), "backward through ReceiveNode");
}

TEST(Executor, CanBeCancelledBetweenRuns) {
  Collecting here;
  const at::Tensor a = leaf();
  const auto entry = send({a * 2}), missing = send({a * 2});
  walk_from(here.pass, {entry, missing});
  here.pass.start();
  here.pass.feed(entry, {at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  here.pass.cancel(Error(Code::kCancelled, "context released"));
  EXPECT_TRUE(here.pass.ended());
  EXPECT_EQ(entry.use_count(), 1) << "the pass still holds the graph";
  here.pass.feed(missing, {at::ones({4})});  // late, harmless
  EXPECT_EQ(here.pass.run(), Progress::kEnded);
  EXPECT_THAT(walk_from(here.pass, {missing}), IsEmpty());
  EXPECT_EQ(here.leaves->size(), 0u);
}

TEST(Executor, CanBeCancelledWhileANodeRuns) {
  Collecting here;
  const at::Tensor a = leaf();
  here.pass.walk(make_roots({Runs::apply(a * 1).sum()}));
  here.pass.start();
  std::promise<void> reached, cancelled;
  Runs::inside = [&] {
    reached.set_value();
    cancelled.get_future().wait();
  };
  auto run = std::async(std::launch::async, [&] { here.pass.run(); });
  reached.get_future().wait();
  here.pass.cancel(Error(Code::kTimeout, "too slow"));
  here.pass.cancel(Error(Code::kCancelled, "the first one counts"));
  cancelled.set_value();
  EXPECT_EQ(error_of([&] { run.get(); }).code(), Code::kTimeout);
  EXPECT_TRUE(here.pass.ended());
  EXPECT_EQ(here.leaves->size(), 0u);
}

TEST(Executor, HoldsNoLockWhileANodeRuns) {
  Collecting here;
  const at::Tensor a = leaf();
  const auto entry = send({a * 1});
  here.pass.walk(make_roots({Runs::apply(a * 1).sum()}));
  walk_from(here.pass, {entry});
  here.pass.start();
  Runs::inside = [&] {
    std::thread([&] {
      here.pass.feed(entry, {at::ones({4})});
      EXPECT_EQ(here.pass.run(), Progress::kElsewhere);
    }).join();
  };
  EXPECT_EQ(here.pass.run(), Progress::kFinished);
  EXPECT_TRUE(at::equal(here.leaves->find(a), at::full({4}, 2.0)));
}

// A callback is queued for the end of the pass, which may be in another run, in another thread.
TEST(Executor, KeepsFinalCallbacksForTheEndOfThePass) {
  Collecting here;
  const at::Tensor a = leaf();
  std::vector<int> called;
  const auto entry = send({a * 2}), last = send({Runs::apply(a * 3)});
  here.pass.walk(make_roots({Runs::apply(a * 1).sum()}));
  walk_from(here.pass, {entry, last});
  here.pass.start();
  Runs::inside = [&, number = 0]() mutable {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [&, mine = ++number] { called.push_back(mine); });
  };
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  here.pass.feed(entry, {at::ones({4})});
  EXPECT_EQ(here.pass.run(), Progress::kWaiting);
  EXPECT_THAT(called, IsEmpty());
  std::thread([&] {
    here.pass.feed(last, {at::ones({4})});
    EXPECT_EQ(here.pass.run(), Progress::kFinished);
  }).join();
  EXPECT_THAT(called, ElementsAre(1, 2));
}

TEST(Executor, DropsFinalCallbacksOfAPassThatFails) {
  Collecting here;
  bool called = false;
  here.pass.walk(make_roots({(Runs::apply(leaf() * 1) * 1).sum()}));
  here.pass.start();
  Runs::inside = [&] {
    torch::autograd::Engine::get_default_engine().queue_callback([&] { called = true; });
    throw std::runtime_error("enough");
  };
  EXPECT_EQ(error_of([&] { here.pass.run(); }).message(), "enough");
  EXPECT_FALSE(called);
}

// Many threads bring gradients at once. Expect: one of them finishes the pass, nothing is lost.
TEST(Executor, IsFedByManyThreads) {
  constexpr int kThreads = 4, kEach = 16;
  const at::Tensor a = at::ones({8}).requires_grad_();
  Collecting here;
  std::vector<std::shared_ptr<Node>> entries;
  for (int i = 0; i < kThreads * kEach; ++i) entries.push_back(send({a * 2}));
  here.pass.walk(entries);
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (t == 1) here.pass.start();
      for (int i = 0; i < kEach; ++i) {
        here.pass.feed(entries[static_cast<size_t>(t * kEach + i)], {at::ones({8})});
        if (here.pass.run() == Progress::kFinished) ++finished;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (here.pass.run() == Progress::kFinished) ++finished;
  EXPECT_EQ(finished, 1);
  EXPECT_TRUE(at::equal(here.leaves->find(a), at::full({8}, 2.0f * kThreads * kEach)));
}

// Two workers, each with its pass, in two threads: the graph goes to the other worker and back.
TEST(Executor, TwoPassesFeedEachOther) {
  const at::Tensor w0 = leaf(), w1 = leaf();
  const auto f = [](const at::Tensor& x, const at::Tensor& w) { return (x * w).sin(); };
  const Tensors theirs = engine_gradients({w0, w1}, {f(f(f(at::ones({4}), w0), w1), w0).sum()});

  const at::Tensor there = f(at::ones({4}), w0);
  const auto sent0 = send({there});
  const auto [received1, in1] = receive({there});
  const at::Tensor back = f(in1[0], w1);
  const auto sent1 = send({back});
  const auto [received0, in0] = receive({back});

  auto leaves0 = std::make_shared<LeafGradients>(), leaves1 = std::make_shared<LeafGradients>();
  std::promise<variable_list> to_worker1, to_worker0;
  Executor pass0({}, leaves0,
                 [&, expected = received0.get()](Boundary& boundary, variable_list gradients) {
                   EXPECT_EQ(&boundary, expected);
                   to_worker1.set_value(std::move(gradients));
                 });
  Executor pass1({}, leaves1,
                 [&, expected = received1.get()](Boundary& boundary, variable_list gradients) {
                   EXPECT_EQ(&boundary, expected);
                   to_worker0.set_value(std::move(gradients));
                 });
  EXPECT_THAT(pass0.walk(make_roots({f(in0[0], w0).sum()})), ElementsAre(received0.get()));
  EXPECT_THAT(walk_from(pass1, {sent1}), ElementsAre(received1.get()));
  EXPECT_THAT(walk_from(pass0, {sent0}), IsEmpty());
  pass0.start();
  pass1.start();
  auto other = std::async(std::launch::async, [&] {
    pass1.feed(sent1, to_worker1.get_future().get());
    return pass1.run();
  });
  EXPECT_EQ(pass0.run(), Progress::kWaiting);
  pass0.feed(sent0, to_worker0.get_future().get());
  EXPECT_EQ(pass0.run(), Progress::kFinished);
  EXPECT_EQ(other.get(), Progress::kFinished);
  expect_same(leaves0->find(w0), theirs[0]);
  expect_same(leaves1->find(w1), theirs[1]);
}

TEST(Boundary, SaysWhatToCallInsteadOfTensorBackward) {
  const auto [node, in] = receive({at::ones({4})});
  try {
    in[0].sum().backward();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(error.advice().find("Context"), std::string::npos);
  }
}

}  // namespace
}  // namespace farspan::testing
