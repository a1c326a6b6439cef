// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Timeline: who was busy when, as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "console/terminal.h"

namespace console {

// Some work on one worker. The clock is the host's monotonic one (nanoseconds_now), which all
// processes of a host share, so spans of several workers can be laid side by side.
struct Span {
  std::string worker = {};  // one row of the picture for each
  std::string kind = {};    // "forward": one colour and one line of the legend for each
  std::string label =
      {};  // "3": written into the picture where it fits, in one to a few characters
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

int64_t nanoseconds_now();

// What a set of spans comes to.
struct Overlap {
  double elapsed_s = 0;   // from the first begin to the last end
  double busy_s = 0;      // the workers' busy times added up
  double together_s = 0;  // while two or more workers were busy
  double parallelism() const { return elapsed_s > 0 ? busy_s / elapsed_s : 0; }
};
Overlap measure(const std::vector<Span>& spans);

// A row for each worker in the order of their names, with its busy share, under a time axis;
// under it the legend and the overlap:
//              0 ms          10            20            30
//   stage0  |F0==F1==F2==F3==              B0==B1==  S=|  58 %
//   stage1  |    F0==F1==F2==F3==B0==B1==...           |  71 %
//   F forward  B backward  S step;  2 workers at once for 43 % of the time
// Spans that end before they begin are left out. `terminal.columns` gives the width, at least 40.
std::string timeline(const std::vector<Span>& spans, const Terminal& terminal);

}  // namespace console
