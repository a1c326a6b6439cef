// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Ticks: where an axis has its marks, and what they say.
#pragma once

#include <string>
#include <vector>

namespace console {

struct Tick {
  double value = 0;
  std::string text;
};

// The smallest of 1, 2 or 5 times a power of ten that is at least `least` (above 0).
double round_step(double least);

// Marks in [low, high], low < high, a round step apart, about `about` of them.
std::vector<Tick> linear_ticks(double low, double high, int about);

// Marks at 1, 2 and 5 times each power of ten in [low, high], 0 < low < high; the powers alone
// where that would be many.
std::vector<Tick> log_ticks(double low, double high);

}  // namespace console
