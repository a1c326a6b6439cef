// The rules: c10d/ddp/bucket_plan.h.
#include <farspan/c10d/ddp/bucket_plan.h>
#include <gmock/gmock.h>

namespace farspan::dist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kNoLimit = static_cast<size_t>(-1);

std::vector<ParameterSize> of_bytes(const std::vector<size_t>& bytes) {
  std::vector<ParameterSize> parameters;
  for (const size_t one : bytes) parameters.push_back({one, 0, false});
  return parameters;
}

TEST(BucketPlan, ABucketIsClosedByTheParameterThatReachesTheLimit) {
  const auto parameters = of_bytes({4, 4, 4, 4, 4});
  const auto order = reversed_order(5);
  EXPECT_THAT(plan_buckets(parameters, order, 8, 8),
              ElementsAre(ElementsAre(4, 3), ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_THAT(plan_buckets(parameters, order, 9, 9),
              ElementsAre(ElementsAre(4, 3, 2), ElementsAre(1, 0)));
}

TEST(BucketPlan, TheFirstBucketHasALimitOfItsOwn) {
  EXPECT_THAT(plan_buckets(of_bytes({4, 4, 4, 4, 4}), reversed_order(5), 1, 12),
              ElementsAre(ElementsAre(4), ElementsAre(3, 2, 1), ElementsAre(0)));
}

TEST(BucketPlan, AParameterLargerThanTheLimitIsNotCut) {
  EXPECT_THAT(plan_buckets(of_bytes({100, 4}), reversed_order(2), 8, 8),
              ElementsAre(ElementsAre(1, 0)));
  EXPECT_THAT(plan_buckets(of_bytes({4, 100, 4}), reversed_order(3), 4, 8),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
}

TEST(BucketPlan, WithoutALimitThereIsOneBucketForEachKind) {
  auto parameters = of_bytes({4, 8, 4, 8});
  parameters[1].kind = parameters[3].kind = 7;
  // Expect: ordered by their last parameters, 1 and 0.
  EXPECT_THAT(plan_buckets(parameters, reversed_order(4), kNoLimit, kNoLimit),
              ElementsAre(ElementsAre(3, 1), ElementsAre(2, 0)));
}

TEST(BucketPlan, EachKindHasItsOwnFirstBucket) {
  auto parameters = of_bytes({4, 4, 4, 4, 4, 4});
  for (const size_t one : {1u, 3u, 5u}) parameters[one].kind = 7;
  EXPECT_THAT(plan_buckets(parameters, reversed_order(6), 4, 8),
              ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(3, 1), ElementsAre(2, 0)));
}

TEST(BucketPlan, ASparseParameterIsAlone) {
  auto parameters = of_bytes({4, 4, 4});
  parameters[1].sparse = true;
  EXPECT_THAT(plan_buckets(parameters, reversed_order(3), kNoLimit, kNoLimit),
              ElementsAre(ElementsAre(1), ElementsAre(2, 0)));
}

TEST(BucketPlan, FollowsTheOrderOfArrival) {
  const std::vector<size_t> order{1, 3, 0, 2};
  EXPECT_THAT(plan_buckets(of_bytes({4, 4, 4, 4}), order, 8, 8),
              ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
}

TEST(BucketPlan, TheBucketThatIsCompleteFirstIsFirst) {
  auto parameters = of_bytes({4, 4, 4, 4});
  parameters[1].kind = 7;
  const std::vector<size_t> order{1, 3, 0, 2};
  // Expect: 1 alone is complete at once, though its bucket was not closed by a limit.
  EXPECT_THAT(plan_buckets(parameters, order, 8, 8),
              ElementsAre(ElementsAre(1), ElementsAre(3, 0), ElementsAre(2)));
}

TEST(BucketPlan, ParametersWithoutElementsHaveAPlace) {
  EXPECT_THAT(plan_buckets(of_bytes({0, 4}), reversed_order(2), 4, 4),
              ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(plan_buckets({}, {}, 4, 4), IsEmpty());
}

}  // namespace
}  // namespace farspan::dist
