// The rules under test: examples/console/timeline.h.
#include "console/timeline.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "examples/recorded_terminal.h"

namespace console {
namespace {

constexpr int64_t kMs = 1'000'000;

Span span(const std::string& worker, const std::string& kind, const std::string& label,
          int64_t begin_ms, int64_t end_ms) {
  return {worker, kind, label, begin_ms * kMs, end_ms * kMs};
}

std::string drawn(const std::vector<Span>& spans, int columns) {
  return timeline(spans, RecordedTerminal({.columns = columns}).terminal);
}

TEST(Timeline, AddsUpBusyTimesAndTheTimeWorkersShare) {
  const Overlap overlap = measure({span("a", "f", "", 0, 10), span("b", "f", "", 5, 20)});
  EXPECT_DOUBLE_EQ(overlap.elapsed_s, 0.020);
  EXPECT_DOUBLE_EQ(overlap.busy_s, 0.025);
  EXPECT_DOUBLE_EQ(overlap.together_s, 0.005);
  EXPECT_DOUBLE_EQ(overlap.parallelism(), 1.25);
}

TEST(Timeline, AWorkerThatDoesTwoThingsAtOnceIsBusyOnce) {
  const Overlap overlap = measure({span("a", "f", "", 0, 10), span("a", "f", "", 5, 12)});
  EXPECT_DOUBLE_EQ(overlap.busy_s, 0.012);
  EXPECT_DOUBLE_EQ(overlap.together_s, 0);
}

TEST(Timeline, SpansThatTouchDoNotOverlap) {
  EXPECT_DOUBLE_EQ(measure({span("a", "f", "", 0, 10), span("b", "f", "", 10, 20)}).together_s, 0);
}

TEST(Timeline, ThreeWorkersAtOnceCountAsOneSharedTime) {
  EXPECT_DOUBLE_EQ(
      measure({span("a", "f", "", 0, 10), span("b", "f", "", 0, 10), span("c", "f", "", 0, 10)})
          .together_s,
      0.010);
}

TEST(Timeline, DrawsARowForEachWorkerWithAxisLegendAndOverlap) {
  // 40 - 1 - 2 (name) - 9 (edges and share) = 28 columns for 28 ms.
  EXPECT_EQ(drawn({span("s1", "forward", "0", 7, 14), span("s0", "forward", "0", 0, 7),
                   span("s0", "forward", "1", 7, 14), span("s1", "backward", "0", 21, 28)},
                  40),
            "    0 ms      10        20\n"
            "s0 |F0=====F1=====              |  50 %\n"
            "s1 |       F0=====       B0=====|  50 %\n"
            "F forward  B backward  two or more workers at once for 25 % of 28.0 ms\n");
}

TEST(Timeline, ASpanShorterThanAColumnIsStillSeen) {
  const std::string text =
      drawn({span("s0", "step", "", 5, 5), span("s1", "forward", "", 0, 28)}, 40);
  EXPECT_NE(text.find("s0 |     S                      |   0 %"), std::string::npos) << text;
}

TEST(Timeline, NamesAreCutWhereTheyDoNotFit) {
  const std::string text =
      drawn({span("s0", "forward", "12", 0, 2), span("s1", "forward", "0", 0, 28)}, 40);
  EXPECT_NE(text.find("s0 |F1   "), std::string::npos) << text;
}

TEST(Timeline, EachKindHasAColourThatEndsWithIt) {
  const std::string text =
      timeline({span("s0", "forward", "", 0, 14), span("s0", "backward", "", 14, 28)},
               RecordedTerminal({.color = true, .columns = 40}).terminal);
  EXPECT_NE(text.find("\x1b[32mF=============\x1b[0m\x1b[35mB=============\x1b[0m"),
            std::string::npos)
      << text;
}

TEST(Timeline, WithoutSpansThereIsNothingToDraw) {
  EXPECT_EQ(drawn({}, 80), "");
  EXPECT_EQ(drawn({span("s0", "backwards in time", "", 5, 4)}, 80), "");
  EXPECT_DOUBLE_EQ(measure({}).parallelism(), 0);
}

TEST(Timeline, AnEmptyInstantDoesNotDivideByZero) {
  EXPECT_NE(drawn({span("s0", "step", "", 3, 3)}, 80).find("S"), std::string::npos);
}

TEST(Timeline, TheWholePictureFitsItsColumns) {
  for (const int columns : {40, 57, 80, 200}) {
    const std::string text =
        drawn({span("stage0", "forward", "0", 0, 13), span("x", "f", "", 3, 977)}, columns);
    size_t begin = 0;
    for (int row = 0; row < 3; ++row) {  // the legend may be longer
      const size_t end = text.find('\n', begin);
      EXPECT_LT(end - begin, static_cast<size_t>(columns)) << text;
      begin = end + 1;
    }
  }
}

TEST(Timeline, AnyTimeScaleHasMarks) {
  for (const int64_t length :
       {3ll, 900ll, 70'000ll, 5'000'000ll, 4'000'000'000ll, 90'000'000'000ll}) {
    const std::string text = drawn({Span{"w", "f", "", 17, 17 + length}}, 80);
    const std::string axis = text.substr(0, text.find('\n'));
    EXPECT_GE(axis.size(), 40u) << text;
    EXPECT_LT(axis.size(), 80u) << text;
  }
}

TEST(Timeline, TheClockIsTheHostsMonotonicOne) {
  const int64_t first = nanoseconds_now();
  EXPECT_GT(first, 0);
  EXPECT_GE(nanoseconds_now(), first);
}

}  // namespace
}  // namespace console
