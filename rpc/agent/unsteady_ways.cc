#include <farspan/rpc/agent/unsteady_ways.h>

namespace farspan::agent {

void UnsteadyWays::note_break(const std::string& transport, TimePoint now) {
  const auto [at, is_first] = by_transport_.try_emplace(transport, Breaks{now, {}});
  if (is_first) return;
  Breaks& breaks = at->second;
  const bool is_back =
      breaks.avoided_until != TimePoint() && now - breaks.avoided_until <= kTogether;
  if (now - breaks.last <= kTogether || is_back) breaks.avoided_until = now + kAvoided;
  breaks.last = now;
}

bool UnsteadyWays::is_unsteady(std::string_view transport, TimePoint now) const {
  const auto found = by_transport_.find(transport);
  return found != by_transport_.end() && now < found->second.avoided_until;
}

}  // namespace farspan::agent
