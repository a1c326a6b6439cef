#include "console/ticks.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace console {
namespace {

Tick tick(double value) {
  std::array<char, 32> text{};
  // 12,000 rather than 12000, and 1e+06 beyond that.
  if (std::abs(value) >= 1000 && std::abs(value) < 1e6 && value == std::round(value)) {
    std::snprintf(text.data(), text.size(), "%d,%03d", int(value) / 1000,
                  std::abs(int(value) % 1000));
  } else {
    std::snprintf(text.data(), text.size(), "%.6g", value);
  }
  return {value, text.data()};
}

}  // namespace

double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= least * (1 - 1e-9)) return power * factor;
  }
  return power * 10;
}

std::vector<Tick> linear_ticks(double low, double high, int about) {
  const double step = round_step((high - low) / about);
  std::vector<Tick> ticks;
  // Counted in whole steps, so that rounding errors do not add up.
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) {
    ticks.push_back(tick(k == 0 ? 0 : k * step));
  }
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high) {
  constexpr double kManyDecades = 3;
  const bool powers_only = std::log10(high / low) > kManyDecades;
  std::vector<Tick> ticks;
  for (double k = std::floor(std::log10(low)); k <= std::ceil(std::log10(high)); ++k) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (powers_only && factor != 1) continue;
      const double value = factor * std::pow(10, k);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push_back(tick(value));
    }
  }
  return ticks;
}

}  // namespace console
