// The rules under test: c10d/backends/cpu/hosts/layout.h and c10d/backends/cpu/tuning.h.
#include <farspan/c10d/backends/cpu/hosts/layout.h>
#include <farspan/c10d/backends/cpu/tuning.h>
#include <farspan/c10d/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace farspan::dist::cpu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Layout, HostsCountInTheOrderOfTheirFirstRanks) {
  const hosts::Layout layout({"b", "a", "b", "c", "a", "b"}, 4);
  EXPECT_EQ(layout.hosts(), 3);
  EXPECT_THAT(layout.ranks_on(0), ElementsAre(0, 2, 5));
  EXPECT_THAT(layout.ranks_on(1), ElementsAre(1, 4));
  EXPECT_THAT(layout.ranks_on(2), ElementsAre(3));
  EXPECT_EQ(layout.own().host, 1);
  EXPECT_EQ(layout.own().place, 1);
  EXPECT_EQ(layout.seat(5).place, 2);
  EXPECT_EQ(layout.lanes(), 1);
}

TEST(Layout, APlaceThatAHostHasNotIsTakenByAnother) {
  const hosts::Layout layout({"a", "a", "a", "b", "b"}, 0);
  EXPECT_EQ(layout.lanes(), 2);
  EXPECT_EQ(layout.at(1, 0), 3);
  EXPECT_EQ(layout.at(1, 1), 4);
  EXPECT_EQ(layout.at(1, 2), 3);
}

Tuning read(const std::map<std::string, std::string>& variables) {
  return Tuning::read_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(Tuning, ComesFromTheEnvironment) {
  EXPECT_EQ(read({}), Tuning{});
  const Tuning tuning = read({{"FARSPAN_CPU_SMALL_BYTES", "0"},
                              {"FARSPAN_CPU_HOSTS_SMALL_BYTES", "100"},
                              {"FARSPAN_CPU_TREE_BYTES", "200"},
                              {"FARSPAN_CPU_PIECE_BYTES", "640"},
                              {"FARSPAN_CPU_ATTACH_BYTES", "400"},
                              {"FARSPAN_CPU_STRIPE_BYTES", "300"},
                              {"FARSPAN_CPU_STRIPES", "7"}});
  EXPECT_EQ(tuning, (Tuning{0, 100, 200, 640, 400, 300, 7}));
}

TEST(Tuning, TravelsAsText) {
  const Tuning tuning{1, 2, 3, 64, 5, 6, 7};
  std::stringstream text;
  text << tuning;
  Tuning other;
  text >> other;
  EXPECT_EQ(other, tuning);
}

TEST(Tuning, WhatMakesNoSenseIsRefusedByName) {
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"FARSPAN_CPU_SMALL_BYTES", "8193"},
                                          {"FARSPAN_CPU_TREE_BYTES", "-1"},
                                          {"FARSPAN_CPU_HOSTS_SMALL_BYTES", "4 KiB"},
                                          {"FARSPAN_CPU_PIECE_BYTES", "100"},
                                          {"FARSPAN_CPU_STRIPE_BYTES", "99999999999999999999"},
                                          {"FARSPAN_CPU_STRIPES", "0"}}) {
    try {
      read({{name, value}});
      ADD_FAILURE() << name << " = " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(name + " is '" + value + "'"));
    }
  }
}

}  // namespace
}  // namespace farspan::dist::cpu
