// DistributedDataParallel of modules on devices, over a backend that works there and one that does
// not: parameters are those that the processor computes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/ddp/distributed_data_parallel.h>
#include <farspan/c10d/streams/streams.h>

#include "conformance/nccl_in_threads.h"
#include "conformance/ranks_in_threads.h"
#include "support/accelerator.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using at::Tensor;

constexpr int kRanks = 2;
constexpr int64_t kWidth = 96;
constexpr int kSteps = 4;

// Of operations that are exact, and that all devices have.
struct Net : torch::nn::Module {
  Net(int rank, at::Device device) {
    const auto filled = [&](double value) {
      return at::full({kWidth}, value, at::kDouble).to(device);
    };
    for (int layer = 0; layer < 4; ++layer) {
      weights.push_back(register_parameter("w" + std::to_string(layer), filled(layer + rank)));
    }
    spare = register_parameter("spare", filled(1));
    scale = register_buffer("scale", filled(2 + rank));
  }
  // `with_spare` is what a rank uses it for, or does not.
  Tensor forward(Tensor x, bool with_spare) {
    for (size_t layer = 0; layer < weights.size(); ++layer) {
      x = on_many_streams && layer % 2 == 1 ? add_on_another_stream(x, layer)
                                            : x + weights[layer] * scale;
    }
    return with_spare ? x + spare * scale : x;
  }
  // The weight's gradient is computed there, too.
  Tensor add_on_another_stream(const Tensor& x, size_t layer) {
    const at::Device device = x.device();
    const c10::Stream own = current_stream_of(device);
    Tensor sum;
    {
      const OnAnotherStream stream(device);
      const c10::Stream other = current_stream_of(device);
      follow(other, own);
      record_use(x, other);
      sum = x + weights[layer] * scale;
      follow(own, other);
    }
    record_use(sum, own);
    return sum;
  }
  std::vector<Tensor> weights;
  Tensor spare, scale;
  bool on_many_streams = false;
  // LibTorch adds gradients up on the stream where this was made.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
};

Tensor input_of_step(int rank, int step, at::Device device) {
  return (at::arange(kWidth, at::kDouble) + rank + 3 * step).to(device);
}

void learn(const std::vector<Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const Tensor& one : parameters) {
    if (one.grad().defined()) Tensor(one).add_(one.grad(), -0.25);
  }
}

// What all ranks together come to, in one place.
std::vector<Tensor> expected(bool rank_1_spares) {
  Net net(0, at::kCPU);
  for (int step = 0; step < kSteps; ++step) {
    net.zero_grad();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Tensor y =
          net.forward(input_of_step(rank, step, at::kCPU), rank == 0 || !rank_1_spares);
      (y * y * (1.0 / kRanks)).sum().backward();
    }
    learn(net.parameters());
  }
  return net.parameters();
}

class DeviceDdp : public CollectiveSuite {
 protected:
  void SetUp() override {
    // LibTorch computes the backward passes of a device on one thread of the process.
    if (accelerators() < kRanks) GTEST_SKIP() << "each rank needs a device";
  }
  void TearDown() override { expect_idle_devices(); }

  // Each rank on its device, and on a stream of its own.
  void train(const dist::DdpOptions& options, bool rank_1_spares, bool keeps_gradients = false,
             bool on_many_streams = false) {
    const std::vector<Tensor> wanted = expected(rank_1_spares);
    on_each(kRanks, [&](int rank) {
      const at::Device device = accelerator(rank);
      const OnAnotherStream stream(device);
      const auto net = std::make_shared<Net>(rank, device);
      net->on_many_streams = on_many_streams;
      for (size_t layer = 1; on_many_streams && layer < net->weights.size(); layer += 2) {
        const OnAnotherStream other(device);
        net->accumulators.push_back(torch::autograd::impl::grad_accumulator(net->weights[layer]));
      }
      dist::DistributedDataParallel<Net> ddp(net, options);
      for (int step = 0; step < kSteps; ++step) {
        net->zero_grad(/*set_to_none=*/!keeps_gradients);
        const Tensor y =
            ddp.forward(input_of_step(rank, step, device), rank == 0 || !rank_1_spares);
        y.backward(y.detach() + y.detach());  // that of the sum of squares
        learn(net->parameters());
      }
      const std::vector<Tensor> got = net->parameters();
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i].detach().cpu(), wanted[i].detach()))
            << "rank " << rank << ", parameter " << i << "\n"
            << got[i].detach().cpu()[0] << wanted[i].detach()[0];
      }
    });
  }
};

TEST_P(DeviceDdp, TrainsAsOneProcessDoes) { train({}, false); }

TEST_P(DeviceDdp, TrainsInManyBuckets) {
  train({.bucket_bytes = kWidth * 8, .first_bucket_bytes = 1}, false);
}

TEST_P(DeviceDdp, TrainsWithGradientsBesideTheBuckets) {
  train({.gradient_as_bucket_view = false}, false);
}

TEST_P(DeviceDdp, TrainsInGradientsThatAreKept) { train({}, false, true); }

TEST_P(DeviceDdp, TrainsWhatOneRankLeavesOut) {
  train({.bucket_bytes = kWidth * 8, .find_unused_parameters = true}, true);
}

// The gradients of a bucket come on several streams: the sum waits for all of them.
TEST_P(DeviceDdp, TrainsWhatIsComputedOnManyStreams) {
  for (int time = 0; time < 5; ++time) train({}, false, time % 2 == 0, true);
}

TEST_P(DeviceDdp, IsReducedWhileBackwardGoesOn) {
  on_each(kRanks, [](int rank) {
    const at::Device device = accelerator(rank);
    const OnAnotherStream stream(device);
    const auto net = std::make_shared<Net>(rank, device);
    dist::DistributedDataParallel<Net> ddp(net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    const auto step = [&] {
      net->zero_grad();
      const Tensor y = ddp.forward(input_of_step(rank, 0, device), true);
      y.backward(y.detach());
    };
    for (int i = 0; i < 2; ++i) step();  // in one bucket, then in one for each parameter
    ASSERT_EQ(ddp.statistics().bucket_bytes.size(), 5u);
    const uint64_t last = ddp.group()->history().back().id;
    const auto reduced = [&] {
      const auto records = ddp.group()->history();
      return std::ranges::count_if(records, [&](const dist::OperationRecord& record) {
        return record.id > last && record.signature.op == dist::Op::kAllReduce &&
               record.state == dist::OperationRecord::State::kDone;
      });
    };
    // Backward goes on to the first layer's gradient, the last to come, when the devices have
    // reduced those of the others.
    net->weights[0].register_hook(
        [&](const Tensor&) { EXPECT_TRUE(eventually([&] { return reduced() == 4; })); });
    step();
    EXPECT_TRUE(eventually([&] { return reduced() == 5; }));
  });
}

TEST_P(DeviceDdp, GradientsLieInTheirBucketUnlessSaidOtherwise) {
  on_each(kRanks, [](int rank) {
    const at::Device device = accelerator(rank);
    const OnAnotherStream stream(device);
    for (const bool views : {true, false}) {
      dist::DdpOptions options;
      if (!views) options.gradient_as_bucket_view = false;
      const auto net = std::make_shared<Net>(rank, device);
      dist::DistributedDataParallel<Net> ddp(net, options);
      Tensor bucket;
      ddp.register_comm_hook([&bucket](dist::GradBucket& one) {
        bucket = one.buffer();
        return dist::all_reduce_hook(one);
      });
      const Tensor y = ddp.forward(input_of_step(rank, 0, device), true);
      y.backward(y.detach());
      for (const Tensor& parameter : net->parameters()) {
        EXPECT_EQ(parameter.grad().device(), device);
        EXPECT_EQ(parameter.grad().is_alias_of(bucket), views);
      }
    }
  });
}

TEST_P(DeviceDdp, RefusesAModuleOnTwoDevices) {
  on_each(kRanks, [](int rank) {
    const auto net = std::make_shared<Net>(rank, accelerator(rank));
    if (rank == 1) net->register_parameter("other", at::ones({1}).to(accelerator(0)));
    const Error error = error_of([&] { dist::DistributedDataParallel<Net> ddp(net); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("'other' is on " + accelerator(0).str() + ", and 'w0' on "));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Each, DeviceDdp,
    ::testing::Values(BackendKind{"Cpu", cpu_in_threads(dist::testing::one_host), {}},
                      BackendKind{"Nccl", run_nccl, {}}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace farspan::testing
