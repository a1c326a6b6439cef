// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// UnsteadyWays: by which transports lines to one worker have broken again and again.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>

#include <farspan/c10d/base/time.h>

namespace farspan::agent {

// A line that opens and breaks, and does so again, has a way that does not carry: others are tried
// before it for a while; again when it breaks as soon as it is back. A single break says nothing of
// the way.
//
// Threading: a value; the caller locks.
class UnsteadyWays {
 public:
  void note_break(const std::string& transport, TimePoint now);
  bool is_unsteady(std::string_view transport, TimePoint now) const;

  static constexpr std::chrono::seconds kTogether{10};  // two breaks that are no further apart
  static constexpr std::chrono::seconds kAvoided{60};

 private:
  struct Breaks {
    TimePoint last, avoided_until;
  };
  std::map<std::string, Breaks, std::less<>> by_transport_;
};

}  // namespace farspan::agent
