// The rules under test: examples/console/progress.h.
#include "console/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "console/format.h"
#include "examples/recorded_terminal.h"

namespace console {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A clock that stands still until the test moves it.
class Progressing : public testing::Test {
 protected:
  ProgressOptions options(const RecordedTerminal& recorded, int64_t steps) {
    ProgressOptions options;
    options.steps = steps;
    options.terminal = recorded.terminal;
    options.now = [this] { return now_; };
    return options;
  }
  // `n` steps of `each`, 64 samples and the same loss.
  void steps(Progress& progress, int n, milliseconds each, double loss = 0.5) {
    for (int i = 0; i < n; ++i) now_ += each, progress.step(loss, 64);
  }

  farspan::TimePoint now_ = farspan::TimePoint(std::chrono::hours(1));
};

TEST_F(Progressing, ElsewhereThanOnATerminalLinesAreRareAndPlain) {
  const RecordedTerminal log;
  Progress progress(options(log, 100));
  steps(progress, 99, milliseconds(100));
  // Expect: the first step, then one after 5 seconds; no control characters.
  ASSERT_EQ(log.writes().size(), 2u) << log.all();
  EXPECT_EQ(log.writes()[0], "training   1%  step 1/100  loss 0.5000  - samples/s  --:-- left\n");
  EXPECT_EQ(log.writes()[1], "training  51%  step 51/100  loss 0.5000  640 samples/s  0:05 left\n");
}

TEST_F(Progressing, TheLastLineSaysHowLongTheRunTook) {
  const RecordedTerminal log;
  {
    Progress progress(options(log, 10));
    steps(progress, 10, milliseconds(500));
  }
  EXPECT_EQ(log.last(), "training 100%  step 10/10  loss 0.5000  128 samples/s  took 0:05\n");
}

TEST_F(Progressing, ARunThatGoesOnBeginsAtItsStep) {
  const RecordedTerminal log;
  ProgressOptions resumed = options(log, 10);
  resumed.done = 8;
  {
    Progress progress(resumed);
    steps(progress, 2, milliseconds(500));
  }
  EXPECT_EQ(log.writes()[0], "training  90%  step 9/10  loss 0.5000  - samples/s  --:-- left\n");
  EXPECT_EQ(log.last(), "training 100%  step 10/10  loss 0.5000  128 samples/s  took 0:01\n");
  // Expect: of one with nothing left to do, nothing.
  const RecordedTerminal quiet;
  resumed = options(quiet, 10);
  resumed.done = 10;
  { Progress progress(resumed); }
  EXPECT_EQ(quiet.all(), "");
}

TEST_F(Progressing, ARunThatEndsEarlyIsNotCalledWhole) {
  const RecordedTerminal log;
  Progress progress(options(log, 10));
  steps(progress, 4, seconds(1));
  progress.finish();
  EXPECT_EQ(log.last(),
            "training  40%  step 4/10  loss 0.5000  64 samples/s  stopped after 0:04\n");
}

TEST_F(Progressing, ATerminalIsRedrawnAtMostTenTimesASecond) {
  const RecordedTerminal screen({.interactive = true});
  Progress progress(options(screen, 1000));
  steps(progress, 1000, milliseconds(1));
  EXPECT_EQ(screen.writes().size(), 10u);
}

TEST_F(Progressing, EveryPictureReplacesTheLastOnTheSameLine) {
  const RecordedTerminal screen({.interactive = true, .columns = 100});
  Progress progress(options(screen, 4));
  steps(progress, 2, seconds(1));
  EXPECT_EQ(screen.last(),
            "\rtraining  50%|##################..................| 2/4  loss 0.5000  "
            "     64 samples/s   0:02 left\x1b[K");
  progress.finish();
  EXPECT_EQ(screen.last().substr(screen.last().size() - 4), "\x1b[K\n");
}

TEST_F(Progressing, TheNumbersStayInTheirPlaces) {
  const RecordedTerminal screen({.interactive = true, .columns = 100});
  Progress progress(options(screen, 1000));
  steps(progress, 1000, milliseconds(150), 0.0123);
  const size_t place = screen.writes()[1].find("loss");
  for (const std::string& line : screen.writes()) {
    EXPECT_EQ(line.find("loss"), place) << line;
    EXPECT_LE(width(line), 100 + 3) << line;  // "\r" and "\x1b[K" take no columns: 4 bytes
  }
}

TEST_F(Progressing, TheBarHasEighthsOfAColumnWhereTheTerminalCan) {
  const RecordedTerminal screen({.interactive = true, .unicode = true, .columns = 85});
  Progress progress(options(screen, 1000));
  steps(progress, 431, seconds(1));
  EXPECT_NE(screen.last().find("|██████▌        |"), std::string::npos) << screen.last();
}

TEST_F(Progressing, ANarrowTerminalLosesTheBarBeforeTheNumbersAndNeverWraps) {
  for (const int columns : {1, 10, 40, 62, 75}) {
    const RecordedTerminal screen({.interactive = true, .columns = columns});
    Progress progress(options(screen, 10));
    steps(progress, 5, seconds(1));
    const std::string line = screen.last().substr(1, screen.last().size() - 4);
    EXPECT_LT(width(line), columns) << line;
  }
}

TEST_F(Progressing, EveryWriteEndsTheColoursThatItBegins) {
  const RecordedTerminal screen({.interactive = true, .color = true, .unicode = true});
  {
    Progress progress(options(screen, 10));
    steps(progress, 10, seconds(1));
  }
  for (const std::string& line : screen.writes()) {
    const size_t begin = line.rfind("\x1b[32m"), end = line.rfind("\x1b[0m");
    ASSERT_NE(end, std::string::npos);
    EXPECT_LT(begin, end);
    EXPECT_EQ(line.find("\x1b[?25l"), std::string::npos) << "hides the cursor";
  }
}

TEST_F(Progressing, TheSpeedFollowsTheLastSeconds) {
  const RecordedTerminal log;
  ProgressOptions wanted = options(log, 1'000'000);
  wanted.plain_interval = seconds(1);
  Progress progress(wanted);
  steps(progress, 1000, milliseconds(10));  // 6,400 samples/s for 10 seconds
  steps(progress, 300, milliseconds(100));  // 640 for 30: the past counts e^-6
  EXPECT_NE(log.last().find(" 65"), std::string::npos) << log.last();
}

TEST_F(Progressing, TheLossIsAnAverageOverTheLastSteps) {
  const RecordedTerminal log;
  ProgressOptions wanted = options(log, 1000);
  wanted.plain_interval = milliseconds(1);
  Progress progress(wanted);
  steps(progress, 100, seconds(1), 4.0);
  steps(progress, 1, seconds(1), 0.0);
  EXPECT_NE(log.last().find("loss 3.80"), std::string::npos) << log.last();
  steps(progress, 200, seconds(1), 0.0);
  EXPECT_NE(log.last().find("loss 0.00"), std::string::npos) << log.last();
}

TEST_F(Progressing, ALossThatIsNotFiniteIsShownAndThenForgotten) {
  const RecordedTerminal log;
  ProgressOptions wanted = options(log, 1000);
  wanted.plain_interval = milliseconds(1);
  Progress progress(wanted);
  steps(progress, 1, seconds(1), std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(log.last().find("loss nan"), std::string::npos) << log.last();
  steps(progress, 1, seconds(1), std::numeric_limits<double>::infinity());
  EXPECT_NE(log.last().find("loss inf"), std::string::npos) << log.last();
  steps(progress, 1, seconds(1), 0.25);
  EXPECT_NE(log.last().find("loss 0.2500"), std::string::npos) << log.last();
}

TEST_F(Progressing, WithoutAKnownEndThereIsNeitherBarNorTimeLeft) {
  const RecordedTerminal log;
  Progress progress(options(log, 0));
  steps(progress, 1, seconds(1));
  EXPECT_EQ(log.last(), "training  step 1  loss 0.5000  - samples/s\n");
  progress.finish();
  EXPECT_EQ(log.last(), "training  step 1  loss 0.5000  64 samples/s  took 0:01\n");
}

TEST_F(Progressing, TheStartDoesNotCountAsTimeOfTheFirstStep) {
  const RecordedTerminal log;
  ProgressOptions wanted = options(log, 11);
  wanted.plain_interval = milliseconds(1);
  Progress progress(wanted);
  steps(progress, 1, seconds(60));
  steps(progress, 1, seconds(1));
  EXPECT_NE(log.last().find("64 samples/s  0:09 left"), std::string::npos) << log.last();
}

TEST_F(Progressing, MoreStepsThanAnnouncedStayAt100Percent) {
  const RecordedTerminal screen({.interactive = true});
  Progress progress(options(screen, 2));
  steps(progress, 5, seconds(1));
  EXPECT_NE(screen.last().find("100%|"), std::string::npos) << screen.last();
  EXPECT_NE(screen.last().find("0:00 left"), std::string::npos) << screen.last();
}

TEST_F(Progressing, ANoteStandsAboveTheBar) {
  const RecordedTerminal screen({.interactive = true});
  Progress progress(options(screen, 4));
  progress.note("before the first step");
  EXPECT_EQ(screen.last(), "before the first step\n");
  steps(progress, 1, seconds(1));
  const std::string bar = screen.last();
  progress.note("accuracy 97 %");
  ASSERT_GE(screen.writes().size(), 2u);
  EXPECT_EQ(screen.writes()[screen.writes().size() - 2], "\r\x1b[Kaccuracy 97 %\n");
  EXPECT_EQ(screen.last(), bar);
}

TEST_F(Progressing, AfterTheEndNothingIsDrawn) {
  const RecordedTerminal screen({.interactive = true});
  Progress progress(options(screen, 4));
  steps(progress, 1, seconds(1));
  progress.finish();
  const size_t writes = screen.writes().size();
  steps(progress, 1, seconds(1));
  progress.finish();
  EXPECT_EQ(screen.writes().size(), writes);
}

TEST_F(Progressing, ARunWithoutAStepSaysNothing) {
  const RecordedTerminal screen({.interactive = true});
  { Progress progress(options(screen, 4)); }
  EXPECT_EQ(screen.all(), "");
}

TEST_F(Progressing, ManyThreadsMayReportSteps) {
  const RecordedTerminal log;
  Progress progress(options(log, 4000));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 1000; ++step) progress.step(1.0, 64);
    });
  }
  for (std::thread& thread : threads) thread.join();
  progress.finish();
  EXPECT_NE(log.last().find("step 4000/4000"), std::string::npos) << log.last();
}

}  // namespace
}  // namespace console
