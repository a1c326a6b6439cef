// The rules under test: examples/console/stopwatch.h.
#include "console/stopwatch.h"

#include <gtest/gtest.h>

namespace console {
namespace {

// Computes until `seconds` have passed by farspan::Clock.
void pass(double seconds) {
  Stopwatch other;
  for (other.start(); other.seconds() < seconds;) continue;
}

TEST(Stopwatch, AddsUpWhatIsBetweenStartAndStop) {
  Stopwatch all, parts;
  all.start();
  for (int i = 0; i < 3; ++i) {
    parts.start();
    pass(0.01);
    EXPECT_GE(parts.seconds(), 0.01 * (i + 1)) << "while it runs";
    parts.stop();
    pass(0.01);
  }
  const double seconds = parts.seconds();
  EXPECT_GE(seconds, 0.03);
  EXPECT_LE(seconds, all.seconds() - 0.03);
  EXPECT_EQ(parts.seconds(), seconds) << "it has been stopped";
}

TEST(Stopwatch, BeginsAtNothing) { EXPECT_EQ(Stopwatch().seconds(), 0); }

}  // namespace
}  // namespace console
