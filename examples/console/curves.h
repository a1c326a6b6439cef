// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Curves: a picture of how a run went, as one SVG file that any browser opens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <farspan/c10d/base/mutex.h>

namespace console {

struct Point {
  double x = 0, y = 0;
};

struct Series {
  std::string name;                // in the legend
  std::vector<Point> points = {};  // x ascending; a point that is not finite leaves a gap
  enum class Draw {
    kLine,      // the points joined
    kSmoothed,  // every point faintly, and their running average as a line
    kDots,      // a dot for each, with its value beside it; for a few points
  } draw = Draw::kLine;
};

struct Panel {
  std::string y_label = {};
  std::vector<Series> series = {};
  // kPercent: 0.98 reads 98 %; up to 100 %, from where all but the lowest tenth of the points
  // and all dots are in the picture. kLog leaves out what is not above zero.
  enum class Scale { kLinear, kLog, kPercent } scale = Scale::kLinear;
};

// Panels under each other with one x axis, in a file that is never there by half
// (write_whole_file). Series of more than about 1,000 points are thinned out: each bin's lowest and
// highest stay. A file whose name ends in .csv gets all points as numbers instead.
//   throws  farspan::Error kUnavailable: the file cannot be written
void write_curves(const std::filesystem::path& file, const std::string& title,
                  const std::string& x_label, const std::vector<Panel>& panels);

// One line for each point: panel, series, x, y, with all digits that y has.
std::string list_curves(const std::string& x_label, const std::vector<Panel>& panels);

// The picture as text.
std::string draw_curves(const std::string& title, const std::string& x_label,
                        const std::vector<Panel>& panels);

// The curves of a training run: the loss of each batch, and the accuracies, 0 to 1, below it.
//
// Threading: every method from any thread.
class TrainingCurves {
 public:
  // Those of a run that goes on after `first` steps in an earlier start of the program.
  explicit TrainingCurves(int64_t first = 0) : first_(first) {}

  // One step is done. Returns how many were before it: its place on the x axis.
  int64_t add_batch(double loss, double accuracy);
  // On the test images, after so many steps.
  void add_test(int64_t step, double accuracy);

  // As write_curves() does.
  void write(const std::filesystem::path& file, const std::string& title) const;
  std::vector<Panel> panels() const;

 private:
  const int64_t first_;
  mutable farspan::Mutex mutex_;
  std::vector<Point> losses_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<Point> batches_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<Point> tests_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace console
