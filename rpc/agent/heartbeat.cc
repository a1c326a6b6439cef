#include <farspan/rpc/agent/heartbeat.h>

#include <algorithm>

namespace farspan::agent {

TimePoint Heartbeat::next(TimePoint now) const noexcept {
  return now + std::max<Clock::duration>(Millis(1), Clock::duration(timeout_) / (kPings + 1));
}

Heartbeat::Action Heartbeat::begin(TimePoint now, const Traffic& traffic) noexcept {
  Action action;
  if (timeout_ <= kNoTimeout) return action;
  last_ = traffic;
  unanswered_ = 0;
  action.look_at = next(now);
  return action;
}

Heartbeat::Action Heartbeat::look(TimePoint now, const Traffic& traffic, bool waiting) noexcept {
  Action action;
  if (!waiting) return action;
  const bool moved =
      traffic.received != last_.received || (last_.sending && traffic.sent != last_.sent);
  last_ = traffic;
  if (moved) {
    unanswered_ = 0;
  } else if (unanswered_ == kPings) {
    action.lost = true;
    return action;
  } else {
    ++unanswered_;
    action.ping = true;
  }
  action.look_at = next(now);
  return action;
}

}  // namespace farspan::agent
