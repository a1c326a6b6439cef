// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Curves: a picture of how a run went, as one SVG file that any browser opens.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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
// highest stay.
//   throws  farspan::Error kUnavailable: the file cannot be written
void write_curves(const std::filesystem::path& file, const std::string& title,
                  const std::string& x_label, const std::vector<Panel>& panels);

// The same as text.
std::string draw_curves(const std::string& title, const std::string& x_label,
                        const std::vector<Panel>& panels);

// The picture of a training run: the batches' loss over the steps, and the accuracies, 0 to 1,
// below it.
std::vector<Panel> training_panels(std::vector<Point> loss, std::vector<Point> train_accuracy,
                                   std::vector<Point> test_accuracy);

}  // namespace console
