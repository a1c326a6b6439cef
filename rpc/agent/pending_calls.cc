#include <farspan/rpc/agent/pending_calls.h>

#include <algorithm>
#include <utility>

namespace farspan::agent {

uint64_t PendingCalls::add(std::shared_ptr<ReplyHandler> handler, Deadline deadline, uint64_t bytes,
                           uint64_t offer, bool is_known) {
  MutexLock lock(mutex_);
  if (closed_) return 0;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  Call& call = slots_[slot];
  call.handler = std::move(handler);
  call.deadline = deadline;
  call.bytes = bytes;
  call.offer = offer;
  if (deadline.is_never()) endless_.fetch_add(1);
  count_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const uint64_t id = id_of_locked(slot);
  if (is_known) call.handler->request_id_.store(id, std::memory_order_relaxed);
  return id;
}

// Unless it has ended meanwhile.
void PendingCalls::make_known(ReplyHandler& handler, uint64_t id) noexcept {
  uint64_t between = ReplyHandler::kBetweenLines;
  handler.request_id_.compare_exchange_strong(between, id);
}

uint64_t PendingCalls::id_of_locked(size_t slot) const {
  return (uint64_t{slots_[slot].turn} << 32) | (slot + 1);
}

PendingCalls::Taken PendingCalls::take_locked(size_t slot) {
  Call& call = slots_[slot];
  Taken taken{std::move(call.handler), id_of_locked(slot), call.bytes, call.offer, call.deadline};
  call.handler = nullptr;
  if (call.deadline.is_never()) endless_.fetch_sub(1);
  if (++call.turn == 0) call.turn = 1;
  free_.push_back(static_cast<uint32_t>(slot));
  count_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(taken.bytes);  // before a look at who waits for room
  return taken;
}

PendingCalls::Taken PendingCalls::take(uint64_t id) {
  MutexLock lock(mutex_);
  const auto slot = slot_locked(id);
  return slot ? take_locked(*slot) : Taken{};
}

PendingCalls::Taken PendingCalls::take_that_of(const ReplyHandler& handler) {
  MutexLock lock(mutex_);
  const auto slot = slot_locked(handler.request_id_.load(std::memory_order_relaxed));
  return slot && slots_[*slot].handler.get() == &handler ? take_locked(*slot) : Taken{};
}

std::optional<size_t> PendingCalls::slot_locked(uint64_t id) const {
  const uint64_t slot = (id & 0xffffffff) - 1;
  if (slot >= slots_.size()) return std::nullopt;
  const Call& call = slots_[slot];
  if (!call.handler || call.turn != static_cast<uint32_t>(id >> 32)) return std::nullopt;
  return slot;
}

bool PendingCalls::is_earliest(Deadline deadline) {
  if (deadline.is_never()) return false;
  MutexLock lock(mutex_);
  if (!timers_.empty() && deadline.at() >= timers_.back()) return false;
  timers_.push_back(deadline.at());
  return true;
}

std::vector<PendingCalls::Taken> PendingCalls::expire(TimePoint at, TimePoint now, Deadline& next) {
  std::vector<Taken> expired;
  next = Deadline::never();
  MutexLock lock(mutex_);
  const auto fired = std::find(timers_.begin(), timers_.end(), at);
  if (fired == timers_.end()) return expired;
  timers_.erase(fired);
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Call& call = slots_[slot];
    if (!call.handler) continue;
    if (!call.deadline.is_never() && call.deadline.at() <= now) {
      expired.push_back(take_locked(slot));
    } else {
      next = earlier(next, call.deadline);
    }
  }
  if (!timers_.empty() && timers_.back() <= next.at()) next = Deadline::never();
  if (!next.is_never()) timers_.push_back(next.at());
  return expired;
}

std::vector<PendingCalls::Taken> PendingCalls::close() {
  std::vector<Taken> all;
  MutexLock lock(mutex_);
  closed_ = true;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].handler) continue;
    ReplyHandler& handler = *slots_[slot].handler;
    handler.request_id_.store(ReplyHandler::kBetweenLines);
    handler.moves_.fetch_add(1);  // in this order: Agent::cancel() looks in the other one
    all.push_back(take_locked(slot));
  }
  return all;
}

void PendingCalls::settle(const Taken& call) noexcept {
  if (call.handler) call.handler->request_id_.store(0);
}

}  // namespace farspan::agent
