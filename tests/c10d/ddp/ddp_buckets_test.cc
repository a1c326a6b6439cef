// The rules under test: c10d/ddp/README.md, "Buckets", over whole passes; and what is measured.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include <torch/nn/modules/container/sequential.h>

#include <farspan/c10d/group/collectives.h>

#include "c10d/ddp/ddp_suite.h"
#include "support/eventually.h"
#include "support/process_counts.h"

namespace farspan::testing {
namespace {

using ::testing::ElementsAre;

class DdpBuckets : public DdpSuite {};
FARSPAN_DDP_SUITE(DdpBuckets);

// Each layer has 4 * 4 weights and 4 biases of 4 bytes.
constexpr size_t kLayer = 80;

torch::nn::Sequential layers(int count) {
  torch::nn::Sequential net;
  for (int i = 0; i < count; ++i) net->push_back(torch::nn::Linear(4, 4));
  seeded(net.ptr(), 3);
  return net;
}

template <class Net, class Trained>
void expect_averages_in_three_steps(int ranks, int rank, Net& net, Trained& ddp) {
  for (int step = 0; step < 3; ++step) {
    const Tensors expected =
        averaged(ranks, *net, [&](int one) { return net->forward(input_of(one, step)).sum(); });
    drop_gradients(*net);
    ddp(input_of(rank, step)).sum().backward();
    expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
  }
}

TEST_P(DdpBuckets, AreOneAtFirstAndThenCutInTheOrderOfArrival) {
  on_each(3, [](int rank) {
    auto net = layers(5);
    Ddp<torch::nn::Sequential> ddp(net, {.bucket_bytes = 2 * kLayer, .first_bucket_bytes = kLayer});
    EXPECT_THAT(ddp.statistics().bucket_bytes, ElementsAre(5 * kLayer));
    EXPECT_FALSE(ddp.statistics().rebuilt);
    expect_averages_in_three_steps(3, rank, net, ddp);
    EXPECT_TRUE(ddp.statistics().rebuilt);
    EXPECT_THAT(ddp.statistics().bucket_bytes, ElementsAre(kLayer, 2 * kLayer, 2 * kLayer));
  });
}

// Its layers are registered in the order in which their gradients come, the last one first.
struct Backwards : torch::nn::Module {
  Backwards() {
    const auto layer = [](int64_t in, int64_t out) {
      return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
    };
    third = register_module("third", layer(8, 3));
    second = register_module("second", layer(2, 8));
    first = register_module("first", layer(4, 2));
  }
  Tensor forward(const Tensor& x) { return third->forward(second->forward(first->forward(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

TEST_P(DdpBuckets, FollowTheGradientsWhereTheModuleHasAnotherOrder) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Backwards>(), 3);
    Ddp<Backwards> ddp(net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    expect_averages_in_three_steps(2, rank, net, ddp);
    EXPECT_TRUE(ddp.statistics().rebuilt);
    constexpr size_t kWeight = sizeof(float);
    EXPECT_THAT(ddp.statistics().bucket_bytes,
                ElementsAre(8 * 3 * kWeight, 2 * 8 * kWeight, 4 * 2 * kWeight));
  });
}

// Each of its weights has a mebibyte.
struct Wide : torch::nn::Module {
  Wide() {
    for (int i = 0; i < 30; ++i) {
      const auto options = torch::nn::LinearOptions(4, 65'536).bias(false);
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(options)));
    }
  }
  Tensor forward(const Tensor& x) {
    Tensor sum = layers[0]->forward(x);
    for (size_t i = 1; i < layers.size(); ++i) sum = sum + layers[i]->forward(x);
    return sum;
  }
  std::vector<torch::nn::Linear> layers;
};

TEST_P(DdpBuckets, HaveOneMebibyteAndThenTwentyFiveUnlessSaidOtherwise) {
  on_each(2, [](int rank) {
    Ddp<Wide> ddp(std::make_shared<Wide>());
    for (int step = 0; step < 2; ++step) ddp(input_of(rank, step)).sum().backward();
    constexpr size_t kMebibyte = size_t{1} << 20;
    EXPECT_THAT(ddp.statistics().bucket_bytes,
                ElementsAre(kMebibyte, 25 * kMebibyte, 4 * kMebibyte));
  });
}

TEST_P(DdpBuckets, MaySplitAModelIntoManyAndGradientsAreTheSameBits) {
  on_each(2, [](int rank) {
    auto net = layers(6);
    std::vector<Tensors> of_sizes;
    for (const size_t bytes : {size_t{1}, size_t{100}, size_t{1} << 20}) {
      Ddp<torch::nn::Sequential> ddp(net, {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
      for (int step = 0; step < 2; ++step) {
        drop_gradients(*net);
        ddp(input_of(rank)).sum().backward();
      }
      of_sizes.emplace_back();
      for (const Tensor& one : gradients_of(*net)) of_sizes.back().push_back(one.clone());
    }
    expect_equal(of_sizes[1], of_sizes[0], "buckets of 100 bytes");
    expect_equal(of_sizes[2], of_sizes[0], "one bucket");
  });
}

// The ranks' gradients come in different orders.
TEST_P(DdpBuckets, FollowRank0WhereRanksDiffer) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Branches>(), 3);
    Ddp<Branches> ddp(net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    // The gradients of what is computed last come first.
    const auto loss = [&](int one, auto& module) {
      const Tensor a = module(input_of(one), one == 0 ? "left" : "right");
      const Tensor b = module(input_of(one), one == 0 ? "right" : "left");
      return (a * b).sum();
    };
    auto plain = [&](const Tensor& x, const std::string& way) { return net->forward(x, way); };
    for (int step = 0; step < 3; ++step) {
      const Tensors expected = averaged(2, *net, [&](int one) { return loss(one, plain); });
      drop_gradients(*net);
      loss(rank, ddp).backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 6u);
  });
}

TEST_P(DdpBuckets, AreReducedWhileBackwardGoesOn) {
  on_each(2, [](int rank) {
    auto net = layers(3);
    Ddp<torch::nn::Sequential> ddp(net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    for (int step = 0; step < 2; ++step) ddp(input_of(rank)).sum().backward();
    const auto reduced = [&] {
      const auto records = ddp.group()->history();
      return std::ranges::count_if(records, [](const dist::OperationRecord& record) {
        return record.signature.op == dist::Op::kAllReduce &&
               record.state == dist::OperationRecord::State::kDone;
      });
    };
    // Backward goes on to the first layer's gradients when those of the others have been reduced.
    const auto before = reduced();
    const Tensor x = input_of(rank).requires_grad_();
    const Tensor y = ddp(x);
    x.register_hook(
        [&](const Tensor&) { EXPECT_TRUE(eventually([&] { return reduced() >= before + 4; })); });
    y.sum().backward();
    EXPECT_EQ(reduced(), before + 6);
    EXPECT_GT(ddp.statistics().last.back().overlap.count(), 0);
  });
}

TEST_P(DdpBuckets, KeepNoOrderWithTheProgramsCollectives) {
  on_each(2, [](int rank) {
    Ddp<torch::nn::Sequential> ddp(layers(3), {.bucket_bytes = 1, .first_bucket_bytes = 1});
    for (int step = 0; step < 3; ++step) {
      const Tensor y = ddp(input_of(rank)), ones = at::ones({3});
      dist::Work work;
      if (rank == 0) work = dist::all_reduce_async(ones);
      y.sum().backward();
      if (rank == 1) work = dist::all_reduce_async(ones);
      work.wait();
      EXPECT_TRUE(at::equal(ones, at::full({3}, 2.0f)));
    }
  });
}

// Threads of this process that perform collectives in the background.
int background_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == "farspan-group" && ProcessCounts::is_alive(task.path() / "stat")) ++count;
  }
  return count;
}

TEST_P(DdpBuckets, OneBucketNeedsNoOtherThread) {
  on_each(2, [](int rank) {
    const auto run = [&](const DdpOptions& options, const dist::CommHook& hook, auto look) {
      Ddp<torch::nn::Sequential> ddp(layers(3), options);
      if (hook) ddp.register_comm_hook(hook);
      for (int step = 0; step < 3; ++step) ddp(input_of(rank)).sum().backward();
      look();
    };
    const auto none = [] { EXPECT_EQ(background_threads(), 0); };
    run({}, {}, none);
    run({}, dist::fp16_compress_hook, none);
    run({.find_unused_parameters = true}, {}, none);
    dist::barrier();
    // Expect: several buckets have one, which may not have told its name yet.
    run({.bucket_bytes = 1, .first_bucket_bytes = 1}, {},
        [] { EXPECT_TRUE(eventually([] { return background_threads() > 0; })); });
  });
}

TEST_P(DdpBuckets, StatisticsTellHowLongThePartsTook) {
  on_each(2, [](int rank) {
    auto net = layers(4);
    Ddp<torch::nn::Sequential> ddp(net);
    EXPECT_EQ(ddp.statistics().iterations, 0u);
    EXPECT_EQ(ddp.statistics().parameters, 8u);
    EXPECT_EQ(ddp.statistics().parameter_bytes, 4 * kLayer);
    const TimePoint began = Clock::now();
    constexpr int kSteps = static_cast<int>(dist::DdpStatistics::kKept) + 3;
    for (int step = 0; step < kSteps; ++step) ddp(input_of(rank)).sum().backward();
    const Clock::duration all = Clock::now() - began;
    const dist::DdpStatistics statistics = ddp.statistics();
    EXPECT_EQ(statistics.iterations, static_cast<uint64_t>(kSteps));
    ASSERT_EQ(statistics.last.size(), dist::DdpStatistics::kKept);
    Clock::duration sum{0};
    for (const dist::DdpTimes& one : statistics.last) {
      EXPECT_GT(one.forward.count(), 0);
      EXPECT_GT(one.backward.count(), 0);
      EXPECT_GT(one.communication.count(), 0);
      EXPECT_LE(one.overlap, one.communication);
      sum += one.forward + one.backward + one.communication - one.overlap;
    }
    EXPECT_LE(sum, all);
    EXPECT_GT(statistics.average.forward.count(), 0);
  });
}

}  // namespace
}  // namespace farspan::testing
