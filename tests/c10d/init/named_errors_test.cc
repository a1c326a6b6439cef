// An error names what the user called, not what that is made of, and says what to do.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include <farspan/c10d/ddp/distributed_data_parallel.h>
#include <farspan/c10d/ddp/distributed_sampler.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/subgroups.h>
#include <farspan/c10d/group/values.h>
#include <farspan/c10d/init/init.h>

#include "c10d/init/alone.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using at::ones;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Use {
  const char* name;
  std::function<void()> run;
};

void expect_each_named(const std::vector<Use>& uses, const std::string& advice) {
  for (const Use& use : uses) {
    const Error error = error_of(use.run);
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_THAT(error.operation(), StartsWith(use.name)) << error.what();
    EXPECT_THAT(error.advice(), HasSubstr(advice)) << error.what();
  }
}

TEST(NamedErrors, WithoutAGroupEachSaysWhatToCallFirst) {
  using Net = torch::nn::LinearImpl;
  std::string word = "word";
  expect_each_named(
      {
          {"broadcast", [] { dist::broadcast(ones({1}), 0); }},
          {"all_reduce", [] { dist::all_reduce(ones({1})); }},
          {"all_reduce_coalesced", [] { dist::all_reduce_coalesced({ones({1})}); }},
          {"reduce", [] { dist::reduce(ones({1}), 0); }},
          {"all_gather", [] { dist::all_gather({ones({1})}, ones({1})); }},
          {"all_gather_into_tensor", [] { dist::all_gather_into_tensor(ones({1}), ones({1})); }},
          {"all_gather_into_tensor_coalesced",
           [] { dist::all_gather_into_tensor_coalesced({ones({1})}, {ones({1})}); }},
          {"gather", [] { dist::gather(ones({1}), {}, 0); }},
          {"scatter", [] { dist::scatter(ones({1}), {}, 0); }},
          {"reduce_scatter", [] { dist::reduce_scatter(ones({1}), {ones({1})}); }},
          {"reduce_scatter_tensor", [] { dist::reduce_scatter_tensor(ones({1}), ones({1})); }},
          {"reduce_scatter_tensor_coalesced",
           [] { dist::reduce_scatter_tensor_coalesced({ones({1})}, {ones({1})}); }},
          {"all_to_all_single", [] { dist::all_to_all_single(ones({1}), ones({1})); }},
          {"barrier", [] { dist::barrier(); }},
          {"monitored_barrier", [] { dist::monitored_barrier(); }},
          {"send", [] { dist::send(ones({1}), 0); }},
          {"recv", [] { dist::recv(ones({1}), 0); }},
          {"all_gather_value", [] { dist::all_gather_value(1); }},
          {"gather_value", [] { dist::gather_value(1, 0); }},
          {"broadcast_value", [&] { dist::broadcast_value(word, 0); }},
          {"scatter_value", [] { dist::scatter_value(std::vector{1}, 0); }},
          {"new_group", [] { dist::new_group({0}); }},
          {"split_group", [] { dist::split_group(0); }},
          {"new_subgroups", [] { dist::new_subgroups(1); }},
          {"get_rank", [] { dist::get_rank(); }},
          {"get_world_size", [] { dist::get_world_size(); }},
          {"DistributedSampler", [] { dist::DistributedSampler(10); }},
          {"DistributedDataParallel",
           [] { dist::DistributedDataParallel<Net>(std::make_shared<Net>(1, 1)); }},
      },
      "init_process_group");
}

TEST(NamedErrors, WhatAnArgumentIsWrongOf) {
  dist::init_process_group("cpu", alone());
  expect_each_named(
      {
          {"all_gather_into_tensor", [] { dist::all_gather_into_tensor(ones({2}), ones({1})); }},
          {"reduce_scatter_tensor", [] { dist::reduce_scatter_tensor(ones({1}), ones({2})); }},
          {"all_to_all_single", [] { dist::all_to_all_single(ones({2}), ones({1})); }},
          {"all_reduce_coalesced", [] { dist::all_reduce_coalesced({}); }},
          {"all_gather_into_tensor_coalesced",
           [] { dist::all_gather_into_tensor_coalesced({}, {}); }},
          {"reduce_scatter_tensor_coalesced",
           [] { dist::reduce_scatter_tensor_coalesced({}, {}); }},
          {"scatter_value",
           [] {
             dist::scatter_value(std::vector{1, 2}, 0);
           }},
      },
      "");
  expect_each_named({{"new_subgroups", [] { dist::new_subgroups(2); }},
                     {"split_group",
                      [] {
                        dist::split_group({{0}, {0}});
                      }},
                     {"split_group", [] { dist::split_group(std::vector<std::vector<int>>()); }}},
                    "give");
  dist::destroy_process_group();
}

TEST(NamedErrors, AnEmptyWorkIsCalledOne) {
  expect_each_named({{"Work::wait", [] { dist::Work().wait(); }}}, "_async");
}

TEST(NamedErrors, InitNamesItselfOnce) {
  const Error error = error_of([] { dist::init_process_group("gloo", alone()); });
  EXPECT_EQ(error.operation(), "init_process_group");
  EXPECT_THAT(error.advice(), HasSubstr("take one of: cpu"));
}

}  // namespace
}  // namespace farspan::testing
