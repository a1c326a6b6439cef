// How a line ends: what came before is delivered first, then all that waits on it hears why.
#include <deque>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include <farspan/c10d/net/batch.h>
#include <farspan/rpc/agent/connection.h>

namespace farspan::agent {

// The other side may have written more before it closed: whoever reads ends the connection when
// that has been read.
void Connection::close_broken() {
  outbox_.stop_writing();
  if (is_open()) stream_->shut();
}

void Connection::end_reading(const Error& why) {
  {
    MutexLock lock(mutex_);
    why_ended_ = why;
  }
  reactor_.remove(*this);
  read_all_.store(true);
}

// What was read before the end is delivered before it, by whichever threads: the last of them tells
// of the end.
bool Connection::ends_last() noexcept { return deliveries_.fetch_sub(1) == 1 && read_all_.load(); }

void Connection::close_ended() {
  std::optional<Error> why;
  {
    MutexLock lock(mutex_);
    why = why_of_peer_ ? why_of_peer_ : why_ended_;
  }
  close(*why);
}

void Connection::close(const Error& why) {
  std::deque<Waiting> waiting;
  std::vector<std::shared_ptr<Lane>> lanes;
  std::shared_ptr<net::MappedBlocks> mapped_blocks;
  bool was_open = false, has_stream = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(closing_, true)) return;
    why_closed_ = why;
    has_stream = stream_ != nullptr;
    has_broken_.store(why_ended_ && why.code() == Code::kDisconnected && !ending_ && !why_of_peer_);
    was_open = state_.exchange(State::kClosed) == State::kOpen;
    waiting.swap(waiting_for_room_);
    waiting_calls_.store(0);
    lanes.swap(lanes_);
    for (const auto& lane : lanes) by_ended_lanes_ += lane->moved();
    mapped_blocks = mapped_blocks_;
  }
  if (has_stream) say_why_it_ends(why);
  if (was_open) reactor_.remove(*this);
  if (has_stream) stream_->shut();
  for (const auto& lane : lanes) lane->close();
  auto calls = close_calls();  // before anybody who waits for room adds to them
  offers_.close();
  asked_.close();
  if (mapped_blocks) mapped_blocks->close();
  opened_.set_error(why);
  for (auto& one : waiting) one.room.set_value();
  end_calls(std::move(calls), why, [self = self(), why, lent = leases_.close()] {
    self->owner_.on_closed(self, why);
    // Then whoever hears of this may call that worker again.
    net::Batch(
        self->reactor_.timers(), std::vector(lent), [](const auto& one) { one->line_ended(); },
        [] {})
        .run();
  });
}

// Returns those that end with the line.
std::vector<PendingCalls::Taken> Connection::close_calls() {
  const auto left = outbox_.take_unsent();
  for (const Outbox::Unsent& request : left) leases_.end_unsent({&request.id, 1});
  auto calls = pending_.close();
  if (has_broken()) {
    for (auto& [from, call] : take_unsent(left, calls)) {
      const auto why_not = owner_.on_unsent(self(), call);
      if (!why_not) continue;
      from->handler = call.handler;
      from->why = std::make_shared<const Error>(*why_not);
    }
  }
  for (const auto& call : calls) PendingCalls::settle(call);
  return calls;
}

// Those among `calls` of which nothing has left. Where there is no memory they stay there.
auto Connection::take_unsent(const std::vector<Outbox::Unsent>& requests,
                             std::vector<PendingCalls::Taken>& calls) noexcept
    -> std::vector<Moving> {
  std::vector<Moving> unsent;
  std::vector<uint64_t> taken;
  try {
    std::unordered_map<uint64_t, PendingCalls::Taken*> by_id;
    for (auto& call : calls) by_id.emplace(call.id, &call);
    for (const Outbox::Unsent& request : requests) {
      const auto found = by_id.find(request.id);
      if (found == by_id.end()) continue;
      PendingCalls::Taken& call = *found->second;
      auto whole = as_before(request, offers_.segments_of(call.offer));
      if (!whole) continue;
      whole->deadline = call.deadline;
      whole->handler = call.handler;
      taken.push_back(request.id);
      unsent.emplace_back(&call, std::move(*whole));
      call.handler = nullptr;
    }
  } catch (const std::bad_alloc&) {
  }
  offers_.take_back_unsent(taken);
  return unsent;
}

// Where this worker ends the line, and not itself: the peer would take it for a way that breaks.
void Connection::say_why_it_ends(const Error& why) noexcept {
  if (why.code() == Code::kDisconnected || why.code() == Code::kShutdown) return;
  try {
    const Buffer meta = wire::encode(why);
    wire::OutFrame end;
    end.header.kind = wire::Kind::kLineEnd;
    end.header.flags = wire::kOneWay;
    end.meta = meta.span();
    outbox_.send_last(end);
  } catch (...) {  // no memory: then it hears that the line has ended
  }
}

// The end of the stream follows.
void Connection::expect_end_of_line(const Error& why) {
  MutexLock lock(mutex_);
  why_of_peer_ = Error(Code::kDisconnected, "it has ended the line: " + why.message());
  why_of_peer_->advice(why.advice());
}

// Tells calls that they have ended without an answer.
void Connection::end_calls(std::vector<PendingCalls::Taken> calls, const Error& why,
                           const std::function<void()>& last) {
  net::Batch(
      reactor_.timers(), std::move(calls),
      [self = self(), why](PendingCalls::Taken&& call) {
        const auto own = call.why;
        self->finish(std::move(call), nullptr, own ? own.get() : &why);
      },
      last)
      .run();
}

Error Connection::why_closed() const {
  MutexLock lock(mutex_);
  return why_closed_.value_or(Error(Code::kDisconnected, "the connection is closed"));
}

}  // namespace farspan::agent
