// The rules under test: examples/training/operator_times.h.
#include "training/operator_times.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <ctime>
#include <stdexcept>
#include <thread>

namespace training {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr double kWork = 0.1;  // seconds of this thread's processor time, long beside all else here
constexpr double kMost =
    0.5 * kWork;  // the rest: freeing results, page by page on a loaded machine

double thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

template <class What>
void keep_busy(const What& what) {
  for (const double end = thread_time() + kWork; thread_time() < end;) what();
}

struct OperatorTimesTest : ::testing::Test {
  void SetUp() override { at::set_num_threads(1); }
  const at::Tensor x = at::ones({256, 256});
};

TEST_F(OperatorTimesTest, CountsAnOperator) {
  const OperatorTimes times;
  keep_busy([&] { at::mm(x, x); });
  const Profile profile = times.so_far();
  EXPECT_THAT(profile.operators, ElementsAre(Pair("mm", Gt(kMost))));
  EXPECT_GT(profile.share(), 0.5);
  EXPECT_LT(profile.share(), 1);
}

TEST_F(OperatorTimesTest, CountsOnceWhatOperatorsCallEachOtherFor) {
  const OperatorTimes times;
  keep_busy([&] { at::linear(x, x); });  // calls t and mm
  const Profile profile = times.so_far();
  EXPECT_THAT(profile.operators, ElementsAre(Pair("linear", Gt(kMost))));
  EXPECT_LT(profile.share(), 1);
}

TEST_F(OperatorTimesTest, CountsThoseOfOtherThreads) {
  const OperatorTimes times;
  std::thread([&] { keep_busy([&] { at::mm(x, x); }); }).join();
  EXPECT_THAT(times.so_far().operators, ElementsAre(Pair("mm", Gt(kMost))));
}

TEST_F(OperatorTimesTest, CountsThoseOfBackwardPasses) {
  const at::Tensor leaf = at::ones({256, 256}).requires_grad_();
  const at::Tensor root = at::mm(leaf, leaf).sum();
  const OperatorTimes times;
  root.backward();
  EXPECT_THAT(times.so_far().operators, ::testing::Contains(Pair("mm", Gt(0))));
}

TEST_F(OperatorTimesTest, TakesAllElseForBusyOutsideOfThem) {
  const OperatorTimes times;
  keep_busy([] {});
  const Profile profile = times.so_far();
  EXPECT_GE(profile.busy, kWork);
  EXPECT_THAT(profile.operators, IsEmpty());
  EXPECT_EQ(profile.share(), 0);
}

TEST_F(OperatorTimesTest, GoesOnAfterAnOperatorHasThrown) {
  const OperatorTimes times;
  EXPECT_THROW(at::linear(x, at::ones({2, 2})), c10::Error);
  keep_busy([&] { at::mm(x, x); });
  EXPECT_THAT(times.so_far().operators, ::testing::Contains(Pair("mm", Gt(kMost))));
}

TEST_F(OperatorTimesTest, HasNoSecondAtATime) {
  {
    const OperatorTimes times;
    EXPECT_THROW(OperatorTimes(), std::logic_error);
    at::mm(x, x);
    EXPECT_THAT(times.so_far().operators, ElementsAre(Pair("mm", Gt(0))));
  }
  at::mm(x, x);
  const OperatorTimes next;
  EXPECT_THAT(next.so_far().operators, IsEmpty());
}

TEST(Profile, AddsUpOverProcesses) {
  Profile sum{.busy = 4, .operators = {{"mm", 1}}};
  sum += {.busy = 4, .operators = {{"mm", 1}, {"relu", 3}}};
  EXPECT_EQ(sum.busy, 8);
  EXPECT_THAT(sum.operators, ElementsAre(Pair("mm", 2), Pair("relu", 3)));
  EXPECT_EQ(sum.share(), 0.625);
}

TEST(Profile, NamesTheLargestFirst) {
  const Profile profile{.busy = 8, .operators = {{"add", 2}, {"mm", 4}, {"relu", 1}}};
  EXPECT_THAT(profile.largest(2), ElementsAre(Pair("mm", 0.5), Pair("add", 0.25)));
  EXPECT_THAT(profile.largest(9), ::testing::SizeIs(3));
}

TEST(Profile, OfNothingHasNoShare) { EXPECT_EQ(Profile().share(), 0); }

}  // namespace
}  // namespace training
