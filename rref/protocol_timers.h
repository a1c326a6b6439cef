// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TimerQueue: what is to happen when, by a clock that the caller reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <farspan/c10d/base/time.h>

namespace farspan::rref {

// Costs grow with the logarithm of the timers that are set, not of what they are set for.
//
// Threading: the caller serialises.
template <class Event>
class TimerQueue {
 public:
  using Key = std::pair<TimePoint, uint64_t>;  // second: 0 for no timer

  Key set(TimePoint at, Event event) {
    const Key key{at, ++last_};
    events_.emplace(key, std::move(event));
    return key;
  }
  // Sets `key` to no timer. Harmless when it has fired.
  void cancel(Key& key) {
    if (key.second != 0) events_.erase(key);
    key.second = 0;
  }
  // The next event that is due, once.
  std::optional<Event> take_due(TimePoint now) {
    if (events_.empty() || events_.begin()->first.first > now) return std::nullopt;
    std::optional<Event> event(std::move(events_.begin()->second));
    events_.erase(events_.begin());
    return event;
  }

  Deadline next() const noexcept {
    return events_.empty() ? Deadline::never() : Deadline(events_.begin()->first.first);
  }
  size_t size() const noexcept { return events_.size(); }
  void clear() { events_.clear(); }

 private:
  uint64_t last_ = 0;
  std::map<Key, Event> events_;
};

}  // namespace farspan::rref
