// The rules under test: c10d/ddp/comm_hook.h, power_sgd.h.
#include <farspan/c10d/ddp/power_sgd.h>
#include <farspan/c10d/group/collectives.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

using dist::BucketResult;
using dist::CommHook;
using dist::GradBucket;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CommHooks : public DdpSuite {
 protected:
  // The gradients after a few steps with a hook, and what they are without.
  void compare(int ranks, const CommHook& hook, double relative) {
    on_each(ranks, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, {.bucket_bytes = 64, .first_bucket_bytes = 32});
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 4; ++step) {
        const Tensors expected = averaged(
            ranks, *net, [&](int one) { return net->forward(input_of(one, step)).sin().sum(); });
        drop_gradients(*net);
        ddp(input_of(rank, step)).sin().sum().backward();
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LE((gradients_of(*net)[i] - expected[i]).norm().item<double>(),
                    relative * expected[i].norm().item<double>())
              << "step " << step << ", parameter " << i;
        }
      }
    });
  }
};
FARSPAN_DDP_SUITE(CommHooks);

TEST_P(CommHooks, AllReduceIsWhatDdpDoesWithout) { compare(3, dist::all_reduce_hook, 0); }

// Half of the last bit for each rounding: of the ranks' numbers, and of their average.
TEST_P(CommHooks, Fp16LosesAThousandth) { compare(3, dist::fp16_compress_hook, 1e-3); }
TEST_P(CommHooks, Bf16LosesAHundredth) { compare(3, dist::bf16_compress_hook, 8e-3); }

TEST_P(CommHooks, CompressionGivesTheSameBitsOnAllRanks) {
  for (const CommHook& hook :
       {CommHook(dist::fp16_compress_hook),
        CommHook(dist::PowerSgdHook({.start_iteration = 2, .min_compression_rate = 1}))}) {
    on_each(3, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net);
      // Each rank has its own memory, as in processes of their own.
      ddp.register_comm_hook(
          hook.target<dist::PowerSgdHook>()
              ? dist::PowerSgdHook({.start_iteration = 2, .min_compression_rate = 1})
              : hook);
      for (int step = 0; step < 5; ++step) ddp(input_of(rank, step)).sin().sum().backward();
      for (const Tensor& one : gradients_of(*net)) {
        const Tensor of_rank_0 = one.clone();
        dist::broadcast(of_rank_0, 0);
        EXPECT_TRUE(at::equal(one, of_rank_0));
      }
    });
  }
}

TEST_P(CommHooks, AUsersOwnSeesEachBucketInOrder) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    std::vector<size_t> seen, finished;
    ddp.register_comm_hook([&](GradBucket& bucket) -> BucketResult {
      seen.push_back(bucket.index());
      EXPECT_EQ(bucket.divisor(), 2);
      EXPECT_EQ(bucket.gradients().size(), bucket.parameters().size());
      EXPECT_EQ(bucket.gradients()[0].sizes(), bucket.parameters()[0].sizes());
      EXPECT_EQ(bucket.is_last(), bucket.index() + 1 == (seen.size() > 1 ? 4u : 1u));
      // The largest gradient of any rank, in place of the average.
      const dist::Work work = dist::all_reduce_async(
          bucket.buffer(), {.op = dist::ReduceOp::kMax, .group = bucket.group()});
      return [&, work, index = bucket.index(), buffer = bucket.buffer()] {
        finished.push_back(index);
        work.wait();
        return buffer.to(at::kDouble);  // of another type, in other memory
      };
    });
    Tensors expected;
    for (int step = 0; step < 2; ++step) {
      const Tensors one = averaged(1, *net, [&](int) { return net->forward(input_of(0)).sum(); });
      const Tensors two = averaged(1, *net, [&](int) { return net->forward(input_of(1)).sum(); });
      expected.clear();
      for (size_t i = 0; i < one.size(); ++i) expected.push_back(at::maximum(one[i], two[i]));
      drop_gradients(*net);
      ddp(input_of(rank)).sum().backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
    EXPECT_THAT(seen, ElementsAre(0, 0, 1, 2, 3));
    EXPECT_EQ(finished, seen);
  });
}

TEST_P(CommHooks, WhatAHookThrowsComesOutOfBackward) {
  on_each(2, [](int rank) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    ddp.register_comm_hook([&](GradBucket& bucket) -> BucketResult {
      if (rank == 1) throw std::runtime_error("no compressor");
      return dist::all_reduce_hook(bucket);
    });
    const Error error = error_of([&] { ddp(input_of(rank)).sum().backward(); });
    EXPECT_THAT(error.what(), HasSubstr("no compressor"));
    const std::string its = rank == 1 ? "TwoLayers, communication hook" : "TwoLayers";
    EXPECT_THAT(error.operation(), HasSubstr(its));
    EXPECT_EQ(error.code(), rank == 1 ? Code::kRemote : Code::kCancelled);
  });
}

TEST_P(CommHooks, AResultOfAnotherSizeIsRefused) {
  on_each(1, [](int) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    ddp.register_comm_hook(
        [](GradBucket&) -> BucketResult { return [] { return at::ones({3}); }; });
    const Error error = error_of([&] { ddp(input_of(0)).sum().backward(); });
    EXPECT_EQ(error.code(), Code::kShapeMismatch);
    EXPECT_THAT(error.what(), HasSubstr("3 elements for a bucket of 67"));
  });
}

TEST_P(CommHooks, OneThatGivesNoFunctionIsRefused) {
  on_each(1, [](int) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    ddp.register_comm_hook([](GradBucket&) { return BucketResult(); });
    const Error error = error_of([&] { ddp(input_of(0)).sum().backward(); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("gave no function"));
  });
}

TEST_P(CommHooks, OneIsRegisteredOnceAndBeforeTheFirstPass) {
  on_each(1, [](int) {
    Ddp<TwoLayers> ddp(std::make_shared<TwoLayers>());
    EXPECT_THAT(error_of([&] { ddp.register_comm_hook(nullptr); }).what(),
                HasSubstr("the communication hook is empty"));
    ddp.register_comm_hook(dist::fp16_compress_hook);
    EXPECT_THAT(error_of([&] { ddp.register_comm_hook(dist::fp16_compress_hook); }).what(),
                HasSubstr("there is a communication hook already"));
    Ddp<TwoLayers> late(std::make_shared<TwoLayers>());
    late(input_of(0)).sum().backward();
    EXPECT_THAT(error_of([&] { late.register_comm_hook(dist::fp16_compress_hook); }).what(),
                HasSubstr("there has been a forward pass"));
  });
}

// Its gradient is what it is told, whatever it holds.
struct Constant : torch::nn::Module {
  explicit Constant(at::IntArrayRef shape) {
    weight = register_parameter("weight", at::zeros(shape));
    bias = register_parameter("bias", at::zeros({5}));
  }
  Tensor forward(const Tensor& gradient) { return (weight * gradient).sum() + bias.sum(); }
  Tensor weight, bias;
};

// How far the mean of the last `steps` gradients is from the true one, relative to that.
double mean_error_of_power_sgd(int rank, int ranks, const dist::PowerSgdOptions& options) {
  constexpr int kSteps = 60;
  const auto net = std::make_shared<Constant>(at::IntArrayRef{16, 3, 4});
  Ddp<Constant> ddp(net);
  const dist::PowerSgdHook hook(options);
  ddp.register_comm_hook(hook);
  const auto own = [](int one) { return numbers({16, 3, 4}, one * 7 + 1).tan(); };
  Tensor truth = at::zeros({16, 3, 4}), sum = at::zeros({16, 3, 4});
  for (int one = 0; one < ranks; ++one) truth += own(one) / ranks;
  for (int step = 0; step < kSteps + 2; ++step) {
    drop_gradients(*net);
    ddp(own(rank)).backward();
    if (step >= 2) sum += net->weight.grad();
    EXPECT_TRUE(at::equal(net->bias.grad(), at::ones({5}))) << "travels in full";
  }
  const auto traffic = hook.traffic();
  EXPECT_EQ(traffic.elements, kSteps * (16u * 12 + 5));
  EXPECT_EQ(traffic.sent, kSteps * ((16u + 12) * static_cast<uint64_t>(options.rank) + 5));
  return ((sum / kSteps - truth).norm() / truth.norm()).item<double>();
}

TEST_P(CommHooks, PowerSgdWithErrorFeedbackIsRightOnAverage) {
  on_each(2, [](int rank) {
    dist::PowerSgdOptions options{.rank = 2, .start_iteration = 2, .min_compression_rate = 1.5};
    const double with = mean_error_of_power_sgd(rank, 2, options);
    EXPECT_LT(with, 0.1);
    options.error_feedback = false;
    EXPECT_GT(mean_error_of_power_sgd(rank, 2, options), 2 * with) << "and not without";
  });
}

TEST_P(CommHooks, PowerSgdOfEnoughRankIsExact) {
  on_each(2, [](int rank) {
    // A gradient of rank 1, on all ranks together: u v'.
    const auto net = std::make_shared<Constant>(at::IntArrayRef{16, 12});
    Ddp<Constant> ddp(net);
    ddp.register_comm_hook(dist::PowerSgdHook({.rank = 1, .start_iteration = 2}));
    const Tensor gradient = at::outer(numbers({16}, 1), numbers({12}, 2));
    for (int step = 0; step < 4; ++step) {
      drop_gradients(*net);
      ddp(gradient * (rank + 1)).backward();
      EXPECT_TRUE(at::allclose(net->weight.grad(), gradient * 1.5, 1e-5, 1e-6)) << step;
    }
  });
}

// A gradient of zeros leaves no direction to begin the next iteration with.
TEST_P(CommHooks, PowerSgdGoesOnAfterAGradientOfZeros) {
  on_each(2, [](int) {
    const auto net = std::make_shared<Constant>(at::IntArrayRef{16, 12});
    Ddp<Constant> ddp(net);
    ddp.register_comm_hook(dist::PowerSgdHook({.rank = 1, .start_iteration = 2}));
    const Tensor gradient = at::outer(numbers({16}, 1), numbers({12}, 2));
    gradient[0].zero_();  // nothing along the first axes
    gradient.select(1, 0).zero_();
    for (int step = 0; step < 5; ++step) {
      drop_gradients(*net);
      const Tensor own = step == 3 ? at::zeros_like(gradient) : gradient;
      ddp(own).backward();
      EXPECT_TRUE(at::allclose(net->weight.grad(), own, 1e-5, 1e-6)) << step;
    }
  });
}

TEST_P(CommHooks, PowerSgdTrainsAsWellAsFullGradients) {
  on_each(2, [](int rank) {
    const Tensor target = numbers({16, 12}, 4);
    const auto train = [&](const CommHook& hook) {
      const auto net = std::make_shared<Constant>(at::IntArrayRef{16, 12});
      Ddp<Constant> ddp(net);
      if (hook) ddp.register_comm_hook(hook);
      for (int step = 0; step < 150; ++step) {
        drop_gradients(*net);
        // The gradient of half the squared distance, from other examples on each rank.
        const Tensor noise = numbers({16, 12}, step) * (rank == 0 ? 1 : -1);
        ddp(net->weight.detach() - target + noise).backward();
        const at::NoGradGuard no_grad;
        net->weight.sub_(0.1 * net->weight.grad());
      }
      return (net->weight.detach() - target).norm().item<double>();
    };
    EXPECT_LT(train({}), 1e-3);
    EXPECT_LT(train(dist::PowerSgdHook({.rank = 2, .start_iteration = 2})), 0.05);
  });
}

TEST_P(CommHooks, PowerSgdChecksItsOptions) {
  EXPECT_EQ(code_of([] { dist::PowerSgdHook({.rank = 0}); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([] { dist::PowerSgdHook({.start_iteration = 1}); }), Code::kInvalidArgument);
}

}  // namespace
}  // namespace farspan::testing
