// The rule under test: autograd/README.md, "Executor": what nodes and hooks may do during a pass.
// The oracle is LibTorch's engine.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "autograd/local_pass.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Engine;
using torch::autograd::Function;
using torch::autograd::FunctionPostHook;
using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;
using Log = std::vector<std::string>;

at::Tensor leaf(at::IntArrayRef sizes = {4, 4}) { return at::randn(sizes).requires_grad_(); }

struct PreHook : FunctionPreHook {
  explicit PreHook(std::function<variable_list(const variable_list&)> f) : run(std::move(f)) {}
  variable_list operator()(const variable_list& gradients) override { return run(gradients); }
  std::function<variable_list(const variable_list&)> run;
};

struct PostHook : FunctionPostHook {
  explicit PostHook(std::function<variable_list(const variable_list&, const variable_list&)> f)
      : run(std::move(f)) {}
  variable_list operator()(const variable_list& out, const variable_list& in) override {
    return run(out, in);
  }
  std::function<variable_list(const variable_list&, const variable_list&)> run;
};

// Hangs a hook of each kind on a node; each scales the gradient and writes what it saw.
void hang_hooks(torch::autograd::Node& node, const std::string& name, Log& log) {
  node.add_pre_hook(std::make_unique<PreHook>([name, &log](const variable_list& gradients) {
    log.push_back(name + " pre");
    variable_list scaled;
    for (const at::Tensor& g : gradients) scaled.push_back(g.defined() ? g * 1.25 : g);
    return scaled;
  }));
  node.add_post_hook(
      std::make_unique<PostHook>([name, &log](const variable_list& out, const variable_list& in) {
        log.push_back(name + " post " + std::to_string(out.size()) + " of " +
                      std::to_string(in.size()));
        variable_list scaled;
        for (const at::Tensor& g : out) scaled.push_back(g.defined() ? g * 0.75 : g);
        return scaled;
      }));
}

void hang_tensor_hook(const at::Tensor& tensor, const std::string& name, Log& log) {
  tensor.register_hook([name, &log](at::Tensor g) {
    log.push_back(name + " tensor");
    return g * 1.5;
  });
}

TEST(ExecutorHooks, RunInTheEnginesOrderWithItsEffect) {
  Log log;
  const at::Tensor a = leaf(), b = leaf();
  for (const auto& [tensor, name] : {std::pair(a, "a"), std::pair(b, "b")}) {
    hang_tensor_hook(tensor, name, log);
    hang_hooks(*torch::autograd::impl::grad_accumulator(tensor), name, log);
  }
  const auto keep_a = torch::autograd::impl::grad_accumulator(a);
  const auto keep_b = torch::autograd::impl::grad_accumulator(b);
  hang_hooks(*keep_a, "a", log);
  hang_hooks(*keep_b, "b", log);
  Tensors kept;
  const auto roots = [&]() -> Tensors {
    const at::Tensor x = a * b, y = x.sin() + a, z = y.exp();
    hang_tensor_hook(x, "x", log);
    hang_tensor_hook(x, "x again", log);
    hang_tensor_hook(y, "y", log);
    hang_hooks(*x.grad_fn(), "x", log);
    hang_hooks(*y.grad_fn(), "y", log);
    x.retain_grad();
    z.retain_grad();
    kept = {x, z};
    return {z.sum() + x.sum()};
  };
  const Tensors theirs = engine_gradients({a, b}, roots());
  const Log expected = std::exchange(log, {});
  const Tensors theirs_kept = {kept[0].grad(), kept[1].grad()};
  const auto ours = backward_here(roots()[0]);
  EXPECT_EQ(log, expected);
  EXPECT_EQ(expected.size(), 13u);
  expect_same(ours->find(a), theirs[0]);
  expect_same(ours->find(b), theirs[1]);
  expect_same(kept[0].grad(), theirs_kept[0]);
  expect_same(kept[1].grad(), theirs_kept[1]);
}

TEST(ExecutorHooks, SeeGradModeOffButOnWithCreateGraph) {
  const at::Tensor a = leaf();
  for (const bool create_graph : {false, true}) {
    bool seen = !create_graph;
    const at::Tensor x = a * 2;
    x.register_hook([&](at::Tensor) { seen = at::GradMode::is_enabled(); });
    backward_here(x.sum(), {.create_graph = create_graph});
    EXPECT_EQ(seen, create_graph);
  }
}

TEST(ExecutorHooks, SeeTheThreadLocalStateOfTheThreadThatMadeThePass) {
  const at::Tensor a = leaf();
  const at::Tensor x = a * 2;
  bool in_autocast = false;
  x.register_hook([&](at::Tensor) {
    in_autocast = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU);
  });
  auto leaves = std::make_shared<LeafGradients>();
  std::unique_ptr<Executor> pass;
  {
    const c10::impl::IncludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
    pass = std::make_unique<Executor>(ExecutorOptions{}, leaves, nullptr);
  }
  pass->walk(dist_autograd::make_roots({x.sum()}));
  pass->start();
  std::thread([&] { pass->run(); }).join();
  EXPECT_TRUE(in_autocast);
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU));
}

TEST(ExecutorHooks, MayKeepAGradientWithoutSeeingItChange) {
  const at::Tensor a = leaf(), b = leaf();
  at::Tensor kept;
  a.register_hook([&](at::Tensor g) { kept = g; });
  const auto leaves = backward_here(at::mm(a + 0, b).sin().sum());
  const at::Tensor before = kept.clone();
  leaves->find(a).mul_(0);
  EXPECT_TRUE(at::equal(kept, before));
}

struct QueuesCallback : Function<QueuesCallback> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    Engine::get_default_engine().queue_callback([] {
      ++calls;
      if (calls == 1) Engine::get_default_engine().queue_callback([] { calls += 10; });
    });
    EXPECT_EQ(calls, 0);
    return {gradients[0] * 2};
  }
  inline static int calls = 0;
};

TEST(ExecutorNodes, MayQueueFinalCallbacks) {
  const at::Tensor a = leaf();
  QueuesCallback::calls = 0;
  const auto leaves = backward_here(QueuesCallback::apply(a).sum());
  EXPECT_EQ(QueuesCallback::calls, 11);
  EXPECT_TRUE(at::equal(leaves->find(a), at::full({4, 4}, 2.0)));
}

struct ThrowsInCallback : Function<ThrowsInCallback> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    Engine::get_default_engine().queue_callback([] { throw std::runtime_error("no more"); });
    return gradients;
  }
};

TEST(ExecutorNodes, FailThePassInAFinalCallback) {
  const at::Tensor root = ThrowsInCallback::apply(leaf()).sum();
  const Error error = error_of([&] { backward_here(root); });
  EXPECT_EQ(error.message(), "no more");
  EXPECT_EQ(error.operation(), "final callback of the backward pass");
}

// Recomputes its forward in backward, as activation checkpointing does.
struct Checkpoint : Function<Checkpoint> {
  static at::Tensor body(const at::Tensor& x) { return x.mm(weight).relu(); }
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    const at::AutoGradMode recording(false);
    return body(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode recording(true);
    if (with_grad) {
      const variable_list got = torch::autograd::grad({body(x)}, {x, weight}, {gradients[0]});
      weight_gradient = got[1];
      return {got[0]};
    }
    torch::autograd::backward({body(x)}, {gradients[0]});
    return {x.grad()};
  }
  inline static at::Tensor weight, weight_gradient;
  inline static bool with_grad = false;
};

TEST(ExecutorNodes, MayRunABackwardInside) {
  const at::Tensor a = leaf();
  Checkpoint::weight = leaf();
  const auto root = [&] { return Checkpoint::apply(Checkpoint::apply(a * 1)).sum(); };
  for (const bool with_grad : {false, true}) {
    Checkpoint::with_grad = with_grad;
    Checkpoint::weight.mutable_grad() = at::Tensor();
    torch::autograd::backward({root()});
    const at::Tensor theirs = a.grad();
    const at::Tensor theirs_weight = Checkpoint::weight.grad();
    a.mutable_grad() = at::Tensor();
    Checkpoint::weight.mutable_grad() = at::Tensor();
    const auto leaves = backward_here(root());
    expect_same(leaves->find(a), theirs);
    // An inner backward() is LibTorch's own: what it adds to .grad stays there.
    expect_same(Checkpoint::weight.grad(), theirs_weight);
    EXPECT_EQ(theirs_weight.defined(), !with_grad);
    EXPECT_FALSE(leaves->find(Checkpoint::weight).defined());
  }
  Checkpoint::weight = Checkpoint::weight_gradient = at::Tensor();
}

// A whole pass of ours inside a node, nested deeper than the engine lets one thread go.
struct Nested : Function<Nested> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t depth) {
    context->saved_data["depth"] = depth;
    return x * 2;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const int64_t depth = context->saved_data["depth"].toInt();
    if (depth == 0) return {gradients[0] * 2, at::Tensor()};
    const at::AutoGradMode recording(true);
    const at::Tensor x = at::ones({}).requires_grad_();
    const auto leaves = backward_here(Nested::apply(x, depth - 1));
    return {gradients[0] * 2 * leaves->find(x) / (1 << 1), at::Tensor()};
  }
};

TEST(ExecutorNodes, MayRunAPassInsideToAnyDepth) {
  const at::Tensor a = at::ones({}).requires_grad_();
  const auto leaves = backward_here(Nested::apply(a, 100));
  EXPECT_EQ(leaves->find(a).item<float>(), 2.0f);
}

struct NotANumber : Function<NotANumber> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] * std::nan("")};
  }
};

struct Throws : Function<Throws> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list) {
    throw std::out_of_range("the moon is too far");
  }
};

struct WrongShape : Function<WrongShape> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, variable_list) { return {at::ones({3, 5})}; }
};

TEST(ExecutorErrors, CarryTheTypeAndMessageOfWhatANodeThrewAndItsName) {
  const at::Tensor root = Throws::apply(leaf() * 1).sum();
  const Error error = error_of([&] { backward_here(root); });
  EXPECT_EQ(error.code(), Code::kRemote);
  EXPECT_EQ(error.message(), "the moon is too far");
  EXPECT_EQ(error.remote_type(), "std::out_of_range");
  EXPECT_NE(error.operation().find("Throws"), std::string::npos) << error.what();
}

// The same text as the engine's, without its stack of addresses.
TEST(ExecutorErrors, SayWhatTheEngineSaysOfABadGradient) {
  std::string theirs;
  const at::Tensor a = leaf();
  try {
    engine_gradients({a}, {WrongShape::apply(a * 1).sum()});
  } catch (const c10::Error& error) {
    theirs = error.what_without_backtrace();
  }
  ASSERT_NE(theirs.find("expected shape"), std::string::npos) << theirs;
  EXPECT_EQ(error_of([&] { backward_here(WrongShape::apply(a * 1).sum()); }).message(), theirs);
}

TEST(ExecutorErrors, NameTheNodeThatMadeNanInAnomalyMode) {
  const at::Tensor a = leaf();
  const at::Tensor root = NotANumber::apply(a * 1).sum();
  backward_here(root, {.retain_graph = true});  // no check unless asked for
  const torch::autograd::DetectAnomalyGuard guard;
  std::string theirs;
  try {
    torch::autograd::backward({root}, {}, /*retain_graph=*/true);
  } catch (const c10::Error& error) {
    theirs = error.what_without_backtrace();
  }
  ASSERT_NE(theirs.find("nan values in its 0th output"), std::string::npos) << theirs;
  EXPECT_EQ(error_of([&] { backward_here(root); }).message(), theirs);
}

struct PostAccumulate : torch::autograd::PostAccumulateGradHook {
  void operator()(const at::Tensor&) override { FAIL() << "must not run"; }
};

TEST(ExecutorErrors, RefusePostAccumulateHooksByName) {
  const at::Tensor a = leaf();
  torch::autograd::impl::set_post_acc_grad_hooks(a, std::make_unique<PostAccumulate>());
  const Error error = error_of([&] { backward_here((a * 1).sum()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("post-accumulate-grad hook"), std::string::npos);
}

// No two gradients share memory, so a clip in place scales each once.
TEST(ExecutorLeaves, HaveGradientsOfTheirOwn) {
  const at::Tensor a = leaf(), b = leaf(), c = leaf(), given = at::randn({4, 4});
  const auto check = [&](const at::Tensor& root, const at::Tensor& gradient, const char* what) {
    auto leaves = std::make_shared<LeafGradients>();
    const at::Tensor given_before = given.clone();
    backward_here({root}, {gradient}, leaves);
    std::vector<at::Tensor> before;
    for (const auto& [tensor, g] : leaves->all()) before.push_back(g.to_dense().clone());
    for (const auto& [tensor, g] : leaves->all()) g.mul_(0.5);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(leaves->all()[i].second.to_dense(), before[i] * 0.5))
          << what << ", leaf " << i;
    }
    EXPECT_TRUE(at::equal(given, given_before)) << what;
  };
  check((a + b).sum(), {}, "expanded");
  check(at::mm(a + b, c).sum(), {}, "the same tensor");
  check(at::mm(a.view({-1}).view({4, 4}) + b.t().t(), c).sum(), {}, "views of one tensor");
  check(at::cat({a, b}), at::cat({given, given}), "parts of one tensor");
  check(a + b, given, "the user's gradient");
  check(a.view({2, 8}).view({4, 4}), given, "a view of the user's gradient");
  const at::Tensor rows = at::tensor({0, 1, 2, 3});
  check((at::embedding(a, rows, -1, false, true) + b).sin().sum(), {}, "sparse and dense");
  check(at::embedding(a, rows, -1, false, true) + b, given, "sparse of the user's gradient");
}

// Where nobody else holds a gradient, its memory is taken over: no copy of a large one.
TEST(ExecutorLeaves, TakeAGradientOverWithoutACopy) {
  const at::Tensor a = leaf(), x = at::randn({4, 4});
  const void* address = nullptr;
  const auto leaves = [&] {
    const at::Tensor root = at::linear(x, a).sin().sum();
    torch::autograd::impl::grad_accumulator(a)->add_pre_hook(
        std::make_unique<PreHook>([&](const variable_list& gradients) {
          address = gradients[0].data_ptr();
          return gradients;
        }));
    return backward_here(root);
  }();
  EXPECT_NE(address, nullptr);
  EXPECT_EQ(leaves->find(a).data_ptr(), address);
}

}  // namespace
}  // namespace farspan::testing
