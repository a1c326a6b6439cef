// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Batch: things that one thread does one after the other, and others go on with when it blocks or
// takes long.
#pragma once

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <farspan/c10d/base/unfinished.h>
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

// Calls each(item) for every item, in order, then last(), once, also when others go on.
//
// Threading: as Unfinished. Lifetime: `timers`, whose threads go on, outlives it.
template <class Item, class Each, class Last>
class Batch final : Unfinished {
 public:
  Batch(Timers& timers, std::vector<Item> items, Each each, Last last)
      : Unfinished(timers),
        timers_(timers),
        items_(std::move(items)),
        each_(std::move(each)),
        last_(std::move(last)) {}

  void run() {
    while (next_ < items_.size()) each_(std::move(items_[next_++]));
    if (!std::exchange(over_, true)) last_();
  }

 private:
  // Continuations as a rule, which would only take each other's time.
  bool urgent() const noexcept override { return false; }
  bool has_more() const noexcept override { return next_ < items_.size(); }
  void hand_over() noexcept override {
    if (std::exchange(over_, true)) return;
    const auto rest = std::make_shared<std::vector<Item>>(
        std::move_iterator(items_.begin() + next_), std::move_iterator(items_.end()));
    next_ = items_.size();
    // No task: somebody always looks after the timers, however many tasks are blocked.
    timers_.add(TimePoint(), [&timers = timers_, rest, each = each_, last = last_] {
      Batch(timers, std::move(*rest), each, last).run();
    });
  }

  Timers& timers_;
  std::vector<Item> items_;
  size_t next_ = 0;
  bool over_ = false;
  const Each each_;
  const Last last_;
};

}  // namespace farspan::net
