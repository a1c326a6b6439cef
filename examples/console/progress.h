// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Progress: one bar for a run, with step, loss, samples per second and time left.
//
// It never hides the cursor, each picture is one write that ends its own colours, and it installs
// no signal handler: a program that is killed at any moment leaves the terminal as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

#include "console/terminal.h"

namespace console {

struct ProgressOptions {
  std::string title = "training";
  int64_t steps = 0;  // in the whole run, over all trainers; 0: not known, then without bar
  int64_t done = 0;   // of them, in an earlier start of the program
  Terminal terminal = standard_error();
  // Between two lines where the output is no terminal: a log file, a pipe, CI.
  farspan::Clock::duration plain_interval = std::chrono::seconds(5);
  std::function<farspan::TimePoint()> now = farspan::Clock::now;
};

// On a terminal a bar on one line, drawn at most ten times a second:
//   training  62%|███████████▌      | 583/938  loss 0.0821   1,234 samples/s   0:17 left
// elsewhere plain lines, the first step's at once and then every few seconds:
//   training  62%  step 583/938  loss 0.0821  1,234 samples/s  0:17 left
// The loss is an average over about the last 20 steps, the speed over about the last 5 seconds.
//
// Threading: every method may be called from any thread.
// Lifetime:  the destructor calls finish().
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One step is done, on `samples` samples, with this loss.
  void step(double loss, int64_t samples);

  // A line of its own, above the bar.
  void note(std::string_view line);

  // Draws a last time, with the time that the run took, and moves to a new line. Later calls do
  // nothing.
  void finish();

 private:
  // Sums that forget: the past counts e times less after each `memory` of the weight added.
  struct Average {
    void add(double value, double weight, double memory);
    double value() const { return weight_ > 0 ? value_ / weight_ : 0; }
    double value_ = 0, weight_ = 0;
  };

  std::string line(bool last) const FARSPAN_REQUIRES(mutex_);
  std::string bar(int64_t columns) const FARSPAN_REQUIRES(mutex_);
  void draw(bool last) FARSPAN_REQUIRES(mutex_);

  const ProgressOptions options_;
  const farspan::TimePoint start_;

  farspan::Mutex mutex_;
  int64_t done_ FARSPAN_GUARDED_BY(mutex_);
  int64_t samples_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Average loss_ FARSPAN_GUARDED_BY(mutex_);
  Average samples_per_s_ FARSPAN_GUARDED_BY(mutex_);
  Average steps_per_s_ FARSPAN_GUARDED_BY(mutex_);
  // Steps and samples since the averages of the speed were last brought up to date.
  int64_t new_steps_ FARSPAN_GUARDED_BY(mutex_) = 0;
  int64_t new_samples_ FARSPAN_GUARDED_BY(mutex_) = 0;
  farspan::TimePoint drawn_at_ FARSPAN_GUARDED_BY(mutex_);
  bool drawn_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool finished_ FARSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace console
