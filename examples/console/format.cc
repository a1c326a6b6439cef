#include "console/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace console {
namespace {

std::string number(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

// Three significant digits below 1000: 9.99, 99.9, 999.
std::string three_digits(double value) {
  return number(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

}  // namespace

std::string count(int64_t n) {
  std::string digits = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string count(int64_t n, std::string_view what) {
  return count(n) + " " + std::string(what) + (n == 1 ? "" : "s");
}

std::string bytes(double n) {
  if (n < 1024) return number(n, 0) + " B";
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (n /= 1024; n >= 999.5 && unit + 1 < kUnits.size(); n /= 1024) ++unit;
  return three_digits(n) + " " + kUnits[unit];
}

std::string percent(double share, int decimals) { return number(100 * share, decimals) + " %"; }

std::string clock_time(std::chrono::duration<double> d) {
  constexpr double kLongest = 1000 * 3600;
  if (!std::isfinite(d.count()) || d.count() < 0 || d.count() >= kLongest) return "--:--";
  const auto seconds = std::llround(d.count());
  std::array<char, 32> text{};
  if (seconds < 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", seconds / 60, seconds % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                  seconds % 60);
  }
  return text.data();
}

std::string duration(std::chrono::duration<double> d) {
  const double us = d.count() * 1e6;
  if (us < 999.5) return three_digits(us) + " us";
  if (us < 999.5e3) return three_digits(us / 1e3) + " ms";
  return us < 100e6 ? three_digits(us / 1e6) + " s" : number(us / 1e6, 0) + " s";
}

int64_t width(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string pad_right(std::string_view text, int64_t columns) {
  return std::string(text) + repeat(" ", columns - width(text));
}

std::string pad_left(std::string_view text, int64_t columns) {
  return repeat(" ", columns - width(text)) + std::string(text);
}

std::string cut(std::string_view text, int64_t columns) {
  size_t end = 0;
  while (end < text.size() && width(text.substr(0, end + 1)) <= std::max<int64_t>(columns, 0)) {
    ++end;
  }
  return std::string(text.substr(0, end));
}

std::string repeat(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace console
