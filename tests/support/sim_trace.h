// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimTrace: what happened in a World, one line an event, and a hash over all of it. Two runs from
// one seed give the same hash, or something in them depends on more than the seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/fnv1a.h>
#include <farspan/c10d/base/time.h>

namespace farspan::testing {

class SimTrace {
 public:
  // `at`: since the World began.
  void add(Clock::duration at, std::string_view text) {
    const auto us = std::chrono::duration_cast<Micros>(at).count();
    std::string line = std::to_string(us) + " us: ";
    line += text;
    hash_.add_text(line);
    ++count_;
    if (lines_.size() < kMostLines) lines_.push_back(std::move(line));
  }

  uint64_t hash() const noexcept { return hash_.value(); }
  size_t count() const noexcept { return count_; }
  // The first ones of a very long run.
  const std::vector<std::string>& lines() const noexcept { return lines_; }
  std::string last(size_t count) const {
    std::string text;
    for (size_t i = lines_.size() - std::min(count, lines_.size()); i < lines_.size(); ++i) {
      text += "  " + lines_[i] + "\n";
    }
    return text;
  }

 private:
  static constexpr size_t kMostLines = 200'000;

  Fnv1a hash_;
  size_t count_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace farspan::testing
