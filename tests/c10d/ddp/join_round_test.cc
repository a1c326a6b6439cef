// The rules: c10d/ddp/join_round.h.
#include <farspan/c10d/ddp/join_round.h>
#include <gmock/gmock.h>

#include "support/errors.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;

TEST(JoinRound, ThoseWithInputsSayWhatIsDone) {
  JoinRound round({}, 3);
  EXPECT_EQ(round.hear({kForward, kForward, kForward}), kForward);
  EXPECT_EQ(round.hear({kJoined, kForward | kBuffers, kJoined}), kForward | kBuffers);
  EXPECT_EQ(round.leader(), 1);
  EXPECT_EQ(round.hear({kJoined, kJoined, kJoined}), kJoined);
  EXPECT_EQ(round.leader(), 1) << "of the last round in which there was one";
}

TEST(JoinRound, DividesByAllOrByThoseWithInputs) {
  JoinRound by_all({}, 3);
  by_all.hear({kReduce, kJoined, kReduce});
  EXPECT_EQ(by_all.divisor(), 3);
  JoinRound by_few({.divide_by_initial_world_size = false}, 3);
  by_few.hear({kReduce, kJoined, kReduce});
  EXPECT_EQ(by_few.divisor(), 2);
}

TEST(JoinRound, RanksThatDoDifferentThingsAreNamed) {
  JoinRound round({}, 3);
  const Error error = testing::error_of([&] { round.hear({kJoined, kForward, kReduce}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 reduces gradients, and rank 1 runs a forward pass"));
  EXPECT_FALSE(round.is_terminated());
}

TEST(JoinRound, EarlyTerminationNamesThoseWithoutInputs) {
  JoinRound round({.throw_on_early_termination = true}, 3);
  EXPECT_EQ(round.hear({kForward, kForward, kForward}), kForward);
  const Error error = testing::error_of([&] { round.hear({kJoined, kForward, kJoined}); });
  EXPECT_EQ(error.code(), Code::kCancelled);
  EXPECT_THAT(error.what(), HasSubstr("no inputs are left on rank 0, 2"));
  EXPECT_TRUE(round.is_terminated());
  EXPECT_EQ(round.hear({kJoined, kJoined, kJoined}), kJoined) << "all have ended well";
}

}  // namespace
}  // namespace farspan::dist
