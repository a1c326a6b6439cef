// The rules: c10d/ddp/reduction_progress.h.
#include <farspan/c10d/ddp/reduction_progress.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

namespace farspan::dist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Arrival = ReductionProgress::Arrival;
using Phase = ReductionProgress::Phase;

// Three buckets of two parameters.
ReductionProgress three_buckets() { return {BucketPlan{{5, 4}, {3, 2}, {1, 0}}, 6}; }

std::vector<size_t> take_all(ReductionProgress& progress) {
  std::vector<size_t> buckets;
  while (const auto bucket = progress.next_bucket()) buckets.push_back(*bucket);
  return buckets;
}

void begin(ReductionProgress& progress) {
  ASSERT_TRUE(progress.expect());
  ASSERT_TRUE(progress.begin());
}

TEST(ReductionProgress, ABucketIsGivenOutWithItsLastParameter) {
  ReductionProgress progress = three_buckets();
  begin(progress);
  EXPECT_EQ(progress.arrive(4), Arrival::kReady);
  EXPECT_THAT(take_all(progress), IsEmpty());
  EXPECT_EQ(progress.arrive(5), Arrival::kReady);
  EXPECT_THAT(take_all(progress), ElementsAre(0));
  EXPECT_THAT(take_all(progress), IsEmpty()) << "once";
}

TEST(ReductionProgress, ALaterBucketWaitsForTheEarlierOnes) {
  ReductionProgress progress = three_buckets();
  begin(progress);
  for (const size_t parameter : {0u, 1u, 2u, 3u, 5u}) progress.arrive(parameter);
  EXPECT_THAT(take_all(progress), IsEmpty());
  EXPECT_THAT(progress.missing(), ElementsAre(4));
  progress.arrive(4);
  EXPECT_THAT(take_all(progress), ElementsAre(0, 1, 2));
  EXPECT_TRUE(progress.all_ready());
  EXPECT_TRUE(progress.all_given_out());
}

TEST(ReductionProgress, BucketsComeInOrderWhateverTheOrderOfArrival) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    ReductionProgress progress = three_buckets();
    begin(progress);
    std::vector<size_t> order{0, 1, 2, 3, 4, 5}, given;
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t parameter : order) {
      EXPECT_EQ(progress.arrive(parameter), Arrival::kReady);
      for (const size_t bucket : take_all(progress)) given.push_back(bucket);
    }
    EXPECT_THAT(given, ElementsAre(0, 1, 2));
    EXPECT_EQ(progress.arrival_order(), order);
  }
}

TEST(ReductionProgress, GradientsBeforeAnyForwardPassStayHere) {
  ReductionProgress progress = three_buckets();
  EXPECT_FALSE(progress.begin());
  EXPECT_EQ(progress.arrive(0), Arrival::kLocal);
  EXPECT_TRUE(progress.expect_local());
  EXPECT_FALSE(progress.begin());
  EXPECT_EQ(progress.arrive(0), Arrival::kLocal);
}

TEST(ReductionProgress, ASecondGradientIsToldApart) {
  ReductionProgress progress = three_buckets();
  begin(progress);
  progress.arrive(0);
  EXPECT_EQ(progress.arrive(0), Arrival::kTwice);
  progress.absent(1);
  EXPECT_EQ(progress.arrive(1), Arrival::kTwice);
}

TEST(ReductionProgress, AGradientAfterTheEndIsTooLate) {
  ReductionProgress progress({{0}}, 1);
  begin(progress);
  progress.arrive(0);
  EXPECT_THAT(take_all(progress), ElementsAre(0));
  progress.finish();
  EXPECT_EQ(progress.phase(), Phase::kReduced);
  EXPECT_FALSE(progress.begin());
  EXPECT_EQ(progress.arrive(0), Arrival::kTooLate);
}

TEST(ReductionProgress, NoForwardPassWhileGradientsAreMissing) {
  ReductionProgress progress = three_buckets();
  begin(progress);
  progress.arrive(0);
  EXPECT_FALSE(progress.expect());
  EXPECT_FALSE(progress.expect_local());
  EXPECT_EQ(progress.phase(), Phase::kReducing);
}

TEST(ReductionProgress, SeveralForwardPassesMayComeBeforeTheGradients) {
  ReductionProgress progress = three_buckets();
  EXPECT_TRUE(progress.expect());
  EXPECT_TRUE(progress.expect());
  EXPECT_TRUE(progress.begin());
  EXPECT_FALSE(progress.begin()) << "once";
}

TEST(ReductionProgress, AbsentParametersCompleteTheirBuckets) {
  ReductionProgress progress = three_buckets();
  begin(progress);
  for (const size_t parameter : {5u, 4u, 3u}) progress.absent(parameter);
  EXPECT_THAT(take_all(progress), ElementsAre(0));
  progress.arrive(2);
  progress.absent(2);
  EXPECT_THAT(take_all(progress), ElementsAre(1));
  EXPECT_THAT(progress.arrival_order(), ElementsAre(2)) << "the absent ones have not arrived";
}

TEST(ReductionProgress, TheOrderOfArrivalIsKeptUntilTheNextIteration) {
  ReductionProgress progress({{1, 0}}, 2);
  begin(progress);
  progress.arrive(0);
  progress.arrive(1);
  progress.finish();
  EXPECT_THAT(progress.arrival_order(), ElementsAre(0, 1));
  progress.set_plan({{0}, {1}});
  EXPECT_EQ(progress.bucket_of(1), 1u);
  begin(progress);
  EXPECT_THAT(progress.arrival_order(), IsEmpty());
  progress.arrive(0);
  EXPECT_THAT(take_all(progress), ElementsAre(0));
}

TEST(ReductionProgress, AStaticGraphIsReadyWithAsManyGradientsAsTheFirstTime) {
  ReductionProgress progress({{2, 1, 0}}, 3);
  progress.start_counting();
  begin(progress);
  for (const size_t parameter : {1u, 0u, 1u}) {
    EXPECT_EQ(progress.arrive(parameter), Arrival::kEarly);
  }
  EXPECT_THAT(take_all(progress), IsEmpty());
  progress.stop_counting();
  EXPECT_THAT(take_all(progress), ElementsAre(0));
  EXPECT_THAT(progress.arrival_order(), ElementsAre(1, 0));
  progress.finish();

  begin(progress);
  EXPECT_TRUE(progress.is_ready(2)) << "it had none, so it is absent from the beginning";
  EXPECT_EQ(progress.arrive(1), Arrival::kEarly);
  EXPECT_EQ(progress.arrive(0), Arrival::kReady);
  EXPECT_EQ(progress.arrive(1), Arrival::kReady);
  EXPECT_THAT(take_all(progress), ElementsAre(0));
  EXPECT_EQ(progress.arrive(1), Arrival::kTwice);
  EXPECT_EQ(progress.arrive(2), Arrival::kTwice);
}

}  // namespace
}  // namespace farspan::dist
