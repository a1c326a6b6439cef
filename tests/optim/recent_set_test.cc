// The rules under test: optim/recent_set.h.
#include <farspan/optim/recent_set.h>

#include <gtest/gtest.h>

namespace farspan::testing {
namespace {

using optim::RecentSet;

TEST(RecentSet, ForgetsTheOldestWhateverItsOrder) {
  RecentSet<int> set(3);
  for (const int one : {1, 9, 5, 9, 0}) set.insert(one);
  EXPECT_EQ(set.size(), 3u);
  EXPECT_FALSE(set.contains(1));
  for (const int one : {9, 5, 0}) EXPECT_TRUE(set.contains(one)) << one;
}

TEST(RecentSet, WhatIsErasedMakesRoom) {
  RecentSet<int> set(2);
  set.insert(1);
  set.insert(2);
  EXPECT_TRUE(set.erase(2));
  EXPECT_FALSE(set.erase(2));
  set.insert(3);
  EXPECT_TRUE(set.contains(1));
  EXPECT_TRUE(set.contains(3));
}

}  // namespace
}  // namespace farspan::testing
