// The rules under test: autograd/ended_passes.h.
#include <farspan/autograd/ended_passes.h>

#include <gtest/gtest.h>

namespace farspan::testing {
namespace {

using dist_autograd::ContextId;
using dist_autograd::EndedPasses;

constexpr ContextId kOne{1}, kTwo{2}, kThree{3};

TEST(EndedPasses, EndEarlierPassesOfTheInitiatorToo) {
  EndedPasses ended(10);
  ended.end({kOne, 0, 5});
  ended.end({kOne, 0, 3});
  EXPECT_TRUE(ended.is_ended({kOne, 0, 4}));
  EXPECT_TRUE(ended.is_ended({kOne, 0, 5}));
  EXPECT_FALSE(ended.is_ended({kOne, 0, 6}));
  EXPECT_FALSE(ended.is_ended({kOne, 1, 2}));
  EXPECT_FALSE(ended.is_ended({kTwo, 0, 2}));
}

TEST(EndedPasses, EndEveryPassOfAReleasedContext) {
  EndedPasses ended(10);
  ended.release(kOne);
  ended.end({kOne, 0, 1});
  EXPECT_TRUE(ended.is_released(kOne));
  EXPECT_TRUE(ended.is_ended({kOne, 7, 1000}));
  EXPECT_FALSE(ended.is_released(kTwo));
}

TEST(EndedPasses, KnowWhyTheLastOneFailed) {
  EndedPasses ended(10);
  ended.end({kOne, 0, 4}, Error(Code::kRemote, "no"));
  ended.end({kTwo, 0, 4});
  EXPECT_EQ(ended.why({kOne, 0, 4})->message(), "no");
  EXPECT_EQ(ended.why({kOne, 0, 3})->code(), Code::kCancelled);
  EXPECT_FALSE(ended.why({kOne, 0, 5}));
  EXPECT_FALSE(ended.why({kTwo, 0, 4})) << "it went well";
  ended.release(kTwo);
  EXPECT_EQ(ended.why({kTwo, 0, 9})->code(), Code::kCancelled);
}

TEST(EndedPasses, ForgetTheOldestContextFirst) {
  EndedPasses ended(2);
  ended.release(kOne);
  ended.end({kTwo, 0, 1});
  ended.end({kThree, 0, 1});
  EXPECT_EQ(ended.size(), 2u);
  EXPECT_FALSE(ended.is_released(kOne));
  EXPECT_TRUE(ended.is_ended({kTwo, 0, 1}));
  EXPECT_TRUE(ended.is_ended({kThree, 0, 1}));
}

}  // namespace
}  // namespace farspan::testing
