// The rule under test: a net that is cut over workers learns as in one plain LibTorch process, to
// the bit. The oracle is LibTorch's engine and torch::optim.
#include "parity/training.h"
#include "support/sanitizers.h"

#include <atomic>
#include <functional>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

namespace farspan::testing {
namespace {

using dist_autograd::Context;
using dist_autograd::PassMode;
using std::chrono::seconds;

std::vector<std::shared_ptr<Part>> parts_on_loan;
std::shared_ptr<Part> lend_part(int64_t index) {
  return parts_on_loan.at(static_cast<size_t>(index));
}
FARSPAN_REGISTER(lend_part);
FARSPAN_REGISTER_METHODS(Part, forward, parameters);

struct NamedOptions {
  const char* name;
  AnyOptions options;
};
const std::vector<NamedOptions>& optimizers() {
  using namespace torch::optim;
  static const std::vector<NamedOptions> all{
      {"SGD", SGDOptions(0.05)},
      {"SGDNesterov", SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.01)},
      {"SGDDampening", SGDOptions(0.05).momentum(0.8).dampening(0.3)},
      {"Adam", AdamOptions(0.01).weight_decay(0.02).amsgrad(true)},
      {"AdamW", AdamWOptions(0.01).betas({0.8, 0.99}).weight_decay(0.1)},
      {"Adagrad", AdagradOptions(0.02).lr_decay(0.01).initial_accumulator_value(0.1)},
      {"RMSprop", RMSpropOptions(0.01).momentum(0.5).centered(true).weight_decay(0.01)}};
  return all;
}

struct Case {
  size_t optimizer;
  at::ScalarType dtype;
  int workers;
  const char* transport = "loopback";
  PassMode mode = PassMode::kExact;
};
std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return std::string(optimizers()[c.optimizer].name) + "_" + c10::toString(c.dtype) + "_on_" +
         std::to_string(c.workers) + "_" + c.transport + (c.mode == PassMode::kFast ? "_fast" : "");
}

class TrainingParity : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  void TearDown() override { parts_on_loan.clear(); }
};

template <class Options>
void expect_same_training(const Case& c, const Options& options) {
  LocalTraining<Options> local(c.dtype, options);
  const Net net(c.dtype);
  parts_on_loan = net.parts;
  Workers workers({.count = c.workers, .transport = c.transport, .settings = {}, .reactor = {}});
  for (int rank = 0; rank < c.workers; ++rank) furnish(workers[rank]);
  const NothingHeldAfter all(workers);
  CurrentWorker trainer(workers[0]);

  std::vector<RRef<std::shared_ptr<Part>>> parts;
  std::vector<RRef<std::vector<at::Tensor>>> parameters;
  for (int64_t i = 0; i < 3; ++i) {
    parts.push_back(remote(static_cast<int>(i) * c.workers / 3, lend_part, i));
    parameters.push_back(parameter_rrefs(parts.back()));
  }
  DistributedOptimizer<OptimizerFor<Options>> optimizer(parameters, options);
  for (int step = 0; step < repetitions(100); ++step) {
    const Sample sample(step, c.dtype);
    Context context;
    at::Tensor x = sample.images;
    for (const auto& part : parts) x = part.rpc_sync(&Part::forward, x);
    const at::Tensor loss = at::nll_loss(x, sample.labels);
    context.backward({loss}, {.mode = c.mode, .retain_graph = false, .timeout = seconds(30)});
    expect_same(loss, local.step(sample), "loss");
    for (size_t i = 0; i < 3; ++i) {
      Worker& owner = workers[static_cast<int>(i) * c.workers / 3];
      for (size_t p = 0; p < net.parts[i]->weights.size(); ++p) {
        expect_same(gradient_at(owner, context, net.parts[i]->weights[p]),
                    local.net.parts[i]->weights[p].grad(), "gradient");
      }
    }
    optimizer.step(context);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t p = 0; p < net.parts[i]->weights.size(); ++p) {
        expect_same(net.parts[i]->weights[p], local.net.parts[i]->weights[p], "parameter");
      }
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << "first in step " << step;
  }
}

TEST_P(TrainingParity, GradientsAndParametersAreTheSameBitsForAHundredSteps) {
  std::visit([&](const auto& options) { expect_same_training(GetParam(), options); },
             optimizers()[GetParam().optimizer].options);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (size_t optimizer = 0; optimizer < optimizers().size(); ++optimizer) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (const int workers : {1, 2, 3}) cases.push_back({optimizer, dtype, workers});
    }
    cases.push_back({optimizer, at::kFloat, 3, "loopback", PassMode::kFast});
  }
  cases.push_back({1, at::kFloat, 3, "unix"});
  cases.push_back({3, at::kDouble, 3, "tcp"});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Nets, TrainingParity, ::testing::ValuesIn(all_cases()), name_of_case);

// A recurrent net, one step a call: three and more gradients of one weight meet, whose sum depends
// on the order.
TEST(TrainingOfOneWeight, UsedInManyCallsIsTheSameBits) {
  at::set_num_threads(1);
  const auto cell = std::make_shared<Part>(2, at::kFloat);  // [batch, 16] -> [batch, 5]
  const at::Tensor back = at::randn({5, 16});
  parts_on_loan = {cell};
  Workers workers({.count = 2, .transport = "loopback", .settings = {}, .reactor = {}});
  for (int rank = 0; rank < 2; ++rank) furnish(workers[rank]);
  const NothingHeldAfter all(workers);
  CurrentWorker trainer(workers[0]);
  const auto there = remote(1, lend_part, int64_t{0});
  for (int round = 0; round < 50; ++round) {
    at::manual_seed(static_cast<uint64_t>(round));
    const at::Tensor x = at::randn({3, 16});
    const auto unroll = [&](const std::function<at::Tensor(const at::Tensor&)>& step) {
      at::Tensor h = x, total = at::zeros({});
      for (int i = 0; i < 9; ++i) {
        const at::Tensor y = step(h);
        total = total + y.sin().sum();
        h = at::mm(y, back);
      }
      return total;
    };
    Context context;
    context.backward(
        {unroll([&](const at::Tensor& h) { return there.rpc_sync(&Part::forward, h); })});
    const auto expected = torch::autograd::grad(
        {unroll([&](const at::Tensor& h) { return cell->forward(h); })}, cell->weights);
    for (size_t p = 0; p < cell->weights.size(); ++p) {
      expect_same(gradient_at(workers[1], context, cell->weights[p]), expected[p]);
    }
    ASSERT_FALSE(HasFailure()) << "first in round " << round;
  }
  parts_on_loan.clear();
}

// What executors get wrong, across workers: the functions run on another worker, and on this one
// under LibTorch's engine.
at::Tensor look_up(const at::Tensor& table, const at::Tensor& rows) {
  return at::embedding(table, rows, -1, false, /*sparse=*/true);
}
at::Tensor hooked(const at::Tensor& x) {
  const at::Tensor y = x * 2;
  y.register_hook([](const at::Tensor& g) { return g * 1.5; });
  x.register_hook([](const at::Tensor& g) { return g + 1; });
  return y.sin();
}

// Recomputes its forward within its backward, in a pass of its own.
struct Recomputes : torch::autograd::Function<Recomputes> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.exp().tanh();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::Engine::get_default_engine().queue_callback([] { ++callbacks; });
    const at::AutoGradMode recording(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    return torch::autograd::grad({x.exp().tanh()}, {x}, {gradients[0]});
  }
  inline static std::atomic<int> callbacks{0};
};
at::Tensor recompute(const at::Tensor& x) { return Recomputes::apply(x * 3); }
FARSPAN_REGISTER(look_up, hooked, recompute);

class PitfallsAcrossWorkers : public ::testing::Test {
 protected:
  PitfallsAcrossWorkers() {
    for (int rank = 0; rank < 2; ++rank) furnish(workers_[rank]);
    at::manual_seed(5);
  }
  void TearDown() override { expect_nothing_held(workers_); }
  // `use` gets a way to call: there, or here.
  template <class Use>
  void expect_same_as_here(const at::Tensor& leaf, Use use) {
    CurrentWorker current(workers_[0]);
    const at::Tensor expected = engine_gradients(
        {leaf}, {use([](auto fn, const auto&... args) { return fn(args...); })})[0];
    Context context;
    context.backward({use([](auto fn, const auto&... args) { return rpc_sync(1, fn, args...); })});
    expect_same(context.gradient(leaf), expected);
  }
  Workers workers_{{.count = 2, .transport = "loopback", .settings = {}, .reactor = {}}};
};

TEST_F(PitfallsAcrossWorkers, SparseAndDenseGradientsOfOneTensor) {
  const at::Tensor table = at::randn({5, 3}).requires_grad_();
  const at::Tensor rows = at::tensor({4, 0, 4});
  expect_same_as_here(table, [&](auto call) { return call(look_up, table, rows).sin().sum(); });
  expect_same_as_here(table, [&](auto call) {
    return call(look_up, table, rows).sin().sum() + call(recompute, table).sum();
  });
}

TEST_F(PitfallsAcrossWorkers, HooksRunWhereTheirTensorsLive) {
  const at::Tensor x = at::randn({5, 3}).requires_grad_();
  expect_same_as_here(x, [&](auto call) { return call(hooked, x * 1).exp().sum(); });
}

TEST_F(PitfallsAcrossWorkers, NodesMayRunPassesAndQueueCallbacks) {
  const at::Tensor x = at::randn({5, 3}).requires_grad_();
  Recomputes::callbacks = 0;
  expect_same_as_here(x, [&](auto call) { return call(recompute, call(recompute, x)).sum(); });
  EXPECT_EQ(Recomputes::callbacks, 4) << "two here, two there";
}

}  // namespace
}  // namespace farspan::testing
