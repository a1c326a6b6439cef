// A program that is started alone calls what it would call among others: all of it works in a group
// of one, and none of it costs a thread, a descriptor or shared memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <farspan/c10d/ddp/distributed_data_parallel.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/subgroups.h>
#include <farspan/c10d/group/values.h>
#include <farspan/c10d/init/init.h>
#include <farspan/c10d/store/hash_store.h>

#include "support/process_counts.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor twos(int64_t count) { return at::full({count}, 2.0); }
Tensor zeros(int64_t count) { return at::zeros({count}); }
void expect_twos(const Tensor& x) { EXPECT_TRUE(at::equal(x, at::full_like(x, 2.0))); }

// What each does with tensors of `count` elements, and what must come of it.
struct Operation {
  const char* name;
  std::function<void(int64_t count)> run;
};
void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

// The results of an operation without its inputs, at once and in the background.
template <class Now, class Later>
void fill_both(int64_t count, const Now& now, const Later& later) {
  const Tensor x = zeros(count), y = zeros(count);
  now(x);
  expect_twos(x);
  later(y).wait();
  expect_twos(y);
}

const Operation kReductions[] = {
    {"all_reduce",
     [](int64_t count) {
       const Tensor x = twos(count);
       for (const auto op : {dist::ReduceOp::kSum, dist::ReduceOp::kAvg, dist::ReduceOp::kMax}) {
         dist::all_reduce(x, {.op = op});
         dist::all_reduce_async(x, {.op = op}).wait();
       }
       expect_twos(x);
     }},
    {"all_reduce_of_sparse",
     [](int64_t count) {
       const Tensor x = twos(count).to_sparse();
       dist::all_reduce(x);
       dist::all_reduce_async(x).wait();
       expect_twos(x.to_dense());
     }},
    {"all_reduce_coalesced",
     [](int64_t count) {
       const Tensors all{twos(count), twos(3)};
       dist::all_reduce_coalesced(all);
       dist::all_reduce_coalesced_async(all).wait();
       for (const Tensor& one : all) expect_twos(one);
     }},
    {"reduce",
     [](int64_t count) {
       const Tensor x = twos(count);
       dist::reduce(x, 0);
       dist::reduce_async(x, 0).wait();
       expect_twos(x);
     }},
    {"reduce_scatter",
     [](int64_t count) {
       const Tensor in = twos(count);
       fill_both(
           count, [&](const Tensor& x) { dist::reduce_scatter(x, {in}); },
           [&](const Tensor& x) { return dist::reduce_scatter_async(x, {in}); });
       fill_both(
           count, [&](const Tensor& x) { dist::reduce_scatter_tensor(x, in); },
           [&](const Tensor& x) { return dist::reduce_scatter_tensor_async(x, in); });
       fill_both(
           count, [&](const Tensor& x) { dist::reduce_scatter_tensor_coalesced({x}, {in}); },
           [&](const Tensor& x) { return dist::reduce_scatter_tensor_coalesced_async({x}, {in}); });
     }},
};

const Operation kMoves[] = {
    {"broadcast",
     [](int64_t count) {
       const Tensor x = twos(count);
       dist::broadcast(x, 0);
       dist::broadcast_async(x, 0).wait();
       expect_twos(x);
     }},
    {"all_gather",
     [](int64_t count) {
       const Tensor in = twos(count);
       fill_both(
           count, [&](const Tensor& x) { dist::all_gather({x}, in); },
           [&](const Tensor& x) { return dist::all_gather_async({x}, in); });
       fill_both(
           count, [&](const Tensor& x) { dist::all_gather_into_tensor(x, in); },
           [&](const Tensor& x) { return dist::all_gather_into_tensor_async(x, in); });
       fill_both(
           count, [&](const Tensor& x) { dist::all_gather_into_tensor_coalesced({x}, {in}); },
           [&](const Tensor& x) {
             return dist::all_gather_into_tensor_coalesced_async({x}, {in});
           });
     }},
    {"gather",
     [](int64_t count) {
       const Tensor in = twos(count);
       fill_both(
           count, [&](const Tensor& x) { dist::gather(in, {x}, 0); },
           [&](const Tensor& x) { return dist::gather_async(in, {x}, 0); });
     }},
    {"scatter",
     [](int64_t count) {
       const Tensor in = twos(count);
       fill_both(
           count, [&](const Tensor& x) { dist::scatter(x, {in}, 0); },
           [&](const Tensor& x) { return dist::scatter_async(x, {in}, 0); });
     }},
    {"all_to_all",
     [](int64_t count) {
       const Tensor in = twos(count);
       fill_both(
           count, [&](const Tensor& x) { dist::all_to_all({x}, {in}); },
           [&](const Tensor& x) { return dist::all_to_all_async({x}, {in}); });
       fill_both(
           count, [&](const Tensor& x) { dist::all_to_all_single(x, in); },
           [&](const Tensor& x) {
             return dist::all_to_all_single_async(x, in, {x.size(0)}, {in.size(0)});
           });
     }},
    {"barrier",
     [](int64_t) {
       dist::barrier();
       dist::barrier_async().wait();
       dist::monitored_barrier({.wait_all_ranks = true});
     }},
    {"values",
     [](int64_t count) {
       std::string value(static_cast<size_t>(count), 'v');
       EXPECT_EQ(dist::all_gather_value(value), std::vector{value});
       EXPECT_EQ(dist::gather_value(value, 0), std::vector{value});
       EXPECT_EQ(dist::scatter_value(std::vector{value}, 0), value);
       dist::broadcast_value(value, 0);
     }},
    {"messages",
     [](int64_t count) {
       const Tensor sent = twos(count), got = zeros(count), batch = zeros(count);
       const dist::Work received = dist::irecv(got, 0);
       dist::send(sent, 0);
       received.wait();
       expect_twos(got);
       const dist::Work leaving = dist::isend(sent, 0, {.tag = 1});
       EXPECT_EQ(dist::recv(got, dist::kAnySource, {.tag = 1}), 0);
       leaving.wait();
       using Kind = dist::P2POp::Kind;
       for (const dist::Work& work : dist::batch_isend_irecv(
                {{Kind::kSend, sent, 0, {.tag = 2}}, {Kind::kRecv, batch, 0, {.tag = 2}}})) {
         work.wait();
       }
       expect_twos(batch);
     }},
};

// Groups that are made of it.
const Operation kGroups[] = {
    {"new_group",
     [](int64_t count) {
       const Tensor x = twos(count);
       const std::vector<int> self{0};
       for (const dist::Group& group :
            {dist::new_group(self), dist::split_group(/*color=*/0), dist::new_subgroups(1).own}) {
         dist::all_reduce(x, {.group = group});
         dist::barrier({.group = group});
       }
       expect_twos(x);
     }},
    {"DistributedDataParallel",
     [](int64_t count) {
       const auto net =
           std::make_shared<torch::nn::LinearImpl>(std::min<int64_t>(count, 10'000), 3);
       const Tensor x = at::ones({2, net->options.in_features()});
       dist::DistributedDataParallel<torch::nn::LinearImpl> ddp(
           net, {.bucket_bytes = 1, .first_bucket_bytes = 1});
       torch::optim::SGD optimizer(ddp.parameters(), 0.1);
       for (int step = 0; step < 3; ++step) {
         optimizer.zero_grad();
         const Tensor bias = net->bias.detach().clone();
         ddp(x).sum().backward();
         optimizer.step();
         EXPECT_TRUE(at::allclose(net->bias, bias - 0.2));
       }
     }},
};

class WorldOfOne : public ::testing::TestWithParam<Operation> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    dist::InitOptions options;
    options.rank = 0;
    options.world_size = 1;
    options.store = std::make_shared<dist::HashStore>();
    dist::init_process_group("cpu", options);
  }
  void TearDown() override { dist::destroy_process_group(); }
};

TEST_P(WorldOfOne, CostsNothing) {
  const ProcessCounts before = ProcessCounts::now();
  for (const int64_t count : {1, 1000, 1'000'000}) {
    GetParam().run(count);
    EXPECT_EQ(ProcessCounts::now(), before) << count << " elements";
  }
}
const auto name_of = [](const auto& each) { return std::string(each.param.name); };
INSTANTIATE_TEST_SUITE_P(Reductions, WorldOfOne, ::testing::ValuesIn(kReductions), name_of);
INSTANTIATE_TEST_SUITE_P(Moves, WorldOfOne, ::testing::ValuesIn(kMoves), name_of);
INSTANTIATE_TEST_SUITE_P(Groups, WorldOfOne, ::testing::ValuesIn(kGroups), name_of);

}  // namespace
}  // namespace farspan::testing
