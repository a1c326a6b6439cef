#include <farspan/rpc/agent/connection.h>

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/relay.h>
#include <farspan/c10d/net/batch.h>
#include <farspan/rpc/agent/pull.h>

namespace farspan::agent {
namespace {

// What a call counts for beside its bytes, so that many small ones are limited, too.
constexpr uint64_t kCallOverhead = 512;
// Calls up to this part of the limit need not wait behind others as long as there is room: what
// those wait for may depend on them, and they do not keep them waiting for long.
constexpr uint64_t kSmall = 1024;
// At the end, for who still reads what was offered.
constexpr Millis kLookForReaders{1};
// Reads in one turn, so that one busy peer does not keep the others waiting.
constexpr int kReadsPerTurn = 16;

Error lost(const transport::IoResult& result) {
  if (result.status == transport::IoStatus::kClosed) {
    return Error(Code::kDisconnected, "the connection was closed by the other side");
  }
  return Error(Code::kDisconnected,
               std::string("the connection failed: ") + strerror(result.error));
}

// What workers compare when they leave together: requests and one-way messages of the rooms above.
bool is_counted(const wire::FrameHeader& header) noexcept {
  return !(header.flags & wire::kReply) && header.kind >= wire::Kind::kCall &&
         header.kind != wire::Kind::kShutdown;
}

uint64_t random_number() {
  const auto drawn = wire::InstanceId::random().high;
  return drawn != 0 ? drawn : 1;
}

bool is_about_offers(wire::Kind kind) noexcept {
  return kind == wire::Kind::kTaken || kind == wire::Kind::kAsk || kind == wire::Kind::kBytes ||
         kind == wire::Kind::kReturned || kind == wire::Kind::kReleased;
}

// As it was before a line took it.
void be_unsent(wire::OutFrame& frame) {
  frame.offer = {};
  frame.offered_from = UINT64_MAX;
  frame.handed_over.clear();
  frame.lease = 0;
  frame.header.flags &= static_cast<uint16_t>(~(wire::kOffered | wire::kHandsOver | wire::kLends));
}

}  // namespace

// Frames that a thread has read, and deliveries_ counts as one.
auto Connection::delivery(std::vector<wire::InFrame> frames) {
  return net::Batch(
      reactor_.timers(), std::move(frames),
      [this](wire::InFrame&& frame) { deliver(std::move(frame)); },
      [self = self()] {
        if (self->ends_last()) self->close_ended();
      });
}

Connection::Connection(net::Reactor& reactor, ConnectionOwner& owner, WorkerInfo peer,
                       ConnectionOptions options)
    : reactor_(reactor),
      owner_(owner),
      peer_(std::move(peer)),
      options_(std::move(options)),
      offers_(options_.shared_blocks),
      number_(random_number()),
      heartbeat_(options.silence_timeout) {}

Connection::~Connection() = default;

void Connection::open(Greeting::Outcome greeted, RefusedWays refused) {
  {
    MutexLock lock(mutex_);
    if (closing_ || stream_) return;  // close(), or another one, came first; this stream ends here
    stream_ = std::move(greeted.stream);
    refused_ = std::move(refused.reasons);
    reader_ = std::move(greeted.reader);
    reader_->set_place([this](const wire::InFrame& frame, size_t bytes) {
      if (frame.header.kind != wire::Kind::kBytes) return Buffer();
      return asked_.place_of_whole(frame.header.request_id, frame.segments.size(), bytes);
    });
    functions_ = std::move(greeted.peer->functions);
    if (greeted.peer->line != 0) number_.store(greeted.peer->line);  // the peer has dialled it
    agree_on_reading_locked(*greeted.peer);
  }
  outbox_.open(*stream_, std::move(greeted.unsent));
  if (ends_before_it_opens()) return;
  deliveries_.fetch_add(1);
  reactor_.add(self());
  State opening = State::kOpening;
  if (!state_.compare_exchange_strong(opening, State::kOpen)) {  // close() came in between
    reactor_.remove(*this);
    stream_->shut();
    return;
  }
  opened_.set_value();
  if (flush()) reactor_.flush_when_writable(*this);
  tell_about_route(refused.in_vain);
  delivery(std::move(greeted.frames)).run();
}

void Connection::deliver_all(std::vector<wire::InFrame> frames) {
  deliveries_.fetch_add(1);
  deliver_counted(std::move(frames));
}

void Connection::deliver_counted(std::vector<wire::InFrame> frames) {
  delivery(std::move(frames)).run();
}

bool Connection::wait(FutureCore& future, Deadline deadline, net::Expected expected) {
  if (!is_open() && !is_closed()) {
    // Open, or failed; or the call has come to its deadline.
    const auto opening = opened_.future().state();
    Signal either;
    const Relay opened(*opening, either), ended(future, either);
    reactor_.wait(either, deadline, nullptr);
  }
  return reactor_.wait(future, deadline, is_open() ? this : nullptr, {expected});
}

std::optional<Connection::Refusal> Connection::call(wire::OutFrame& frame, Deadline deadline,
                                                    const std::shared_ptr<ReplyHandler>& handler,
                                                    bool will_wait, bool had_room) {
  if (const auto too_large = wire::excess(frame, wire::FrameLimits())) return Refusal{*too_large};
  const uint64_t bytes = frame.bytes() + kCallOverhead;
  const bool in_line = waiting_calls_.load() > 0 && bytes > options_.max_in_flight_bytes / kSmall;
  const bool waits = !had_room && (in_line || !has_room(bytes, false));
  std::optional<Watch> watch;  // while it waits for room, as well
  if (waits && deadline.is_never()) watch.emplace(self());
  if (waits && !wait_for_room(bytes, deadline)) {
    return Refusal{
        Error(Code::kTimeout, "calls of " + std::to_string(options_.max_in_flight_bytes >> 20) +
                                  " MiB to it are under way, and no room for this one in time")
            .advice("call less at once, or raise WorkerOptions::max_in_flight_bytes")};
  }
  const uint64_t offered = offer(frame), lease = leases_.make(frame);
  uint64_t id = pending_.add(handler, deadline, bytes, offered, /*is_known=*/!had_room);
  if (id != 0 && is_closed() && pending_.take(id).handler) id = 0;  // before close() has taken it
  if (waits) make_room();  // for the next one, now that this one counts
  if (!frame.handed_over.empty()) offers_.belongs_to(id, offered);
  if (lease != 0) leases_.belongs_to(id, lease);
  if (id == 0) return refuse(frame);
  frame.header.request_id = id;
  Outbox::State state{};
  try {
    set_deadline(frame, deadline);
    requests_sent_.fetch_add(1, std::memory_order_relaxed);
    count_question();
    if (will_wait && is_open()) reactor_.expect_answer(*this);
    state = outbox_.send(frame);
  } catch (const std::bad_alloc&) {
    if (!pending_.take(id).handler) return std::nullopt;  // it has ended, and its handler has heard
    refuse(frame);
    throw;
  }
  if (state == Outbox::State::kClosed && pending_.take(id).handler) return refuse(frame);
  if (had_room) PendingCalls::make_known(*handler, id);  // nothing could recall it before
  if (state == Outbox::State::kLeft && deadline.expired())
    recall({id});  // nobody else may any more
  after_send(state, will_wait);
  return std::nullopt;
}

void Connection::set_deadline(wire::OutFrame& frame, Deadline deadline) {
  if (deadline.is_never()) {
    if (!watching_.load()) watch_peer();
    return;
  }
  if (pending_.is_earliest(deadline)) expire_later(deadline.at());
  const auto left = std::chrono::duration_cast<Micros>(deadline.remaining()).count();
  frame.header.remaining_us = static_cast<uint64_t>(std::max<int64_t>(left, 1));
}

// Nothing of the frame has left, nor will.
Connection::Refusal Connection::refuse(wire::OutFrame& frame) {
  const bool lends = frame.lease != 0;  // what was lent has gone with the line
  leases_.end(frame.lease);
  withdraw(frame.offer.id);
  offers_.take_back_of(frame.offer.id);
  be_unsent(frame);
  return {why_closed(), has_broken() && !lends};
}

bool Connection::cancel(const ReplyHandler& handler) {
  std::vector<PendingCalls::Taken> calls(1);
  calls[0] = pending_.take_that_of(handler);
  if (!calls[0].handler) return false;
  recall({calls[0].id});
  end_calls(std::move(calls), Messenger::given_up(), [] {});
  return true;
}

// They are over, and what they would send may change.
void Connection::recall(std::vector<uint64_t> requests) {
  if (!outbox_.has_left()) return;
  const Outbox::GivenUp given_up = outbox_.give_up(std::move(requests));
  requests_sent_.fetch_sub(given_up.dropped.size(), std::memory_order_relaxed);
  offers_.take_back_unsent(given_up.dropped);
  leases_.end_unsent(given_up.dropped);
  if (given_up.broken) close_broken();
  make_room();
  if (flush()) reactor_.flush_when_writable(*this);  // others may have left it to this thread
}

void Connection::send(wire::OutFrame& frame) {
  const auto too_large = wire::excess(frame, wire::FrameLimits());
  if (too_large) return send_instead(frame, *too_large);
  if (is_counted(frame.header)) requests_sent_.fetch_add(1, std::memory_order_relaxed);
  offer(frame);
  leases_.make(frame);
  after_send(outbox_.send(frame), false);
}

void Connection::send_instead(const wire::OutFrame& frame, const Error& why) {
  if (!(frame.header.flags & wire::kReply)) {
    log(LogLevel::kError, "agent",
        "dropped a frame of kind '" + std::string(name_of(frame.header.kind)) + "' for worker '" +
            peer_.name + "': " + why.what());
    return;
  }
  const Buffer meta = wire::encode(why);
  wire::OutFrame failure;
  failure.header = frame.header;
  failure.header.flags |= wire::kFailed;
  failure.meta = meta.span();
  after_send(outbox_.send(failure), false);
}

// `will_wait`: the caller's wait() writes on what is left.
void Connection::after_send(Outbox::State state, bool will_wait) {
  if (state == Outbox::State::kBroken) {
    close_broken();
  } else if (state == Outbox::State::kLeft && !will_wait && is_open()) {
    reactor_.flush_when_writable(*this);
  }
}

bool Connection::flush() noexcept {
  if (!outbox_.has_left() || outbox_.is_broken() || !is_open()) return false;
  const Outbox::State state = outbox_.flush();
  if (state == Outbox::State::kBroken) close_broken();
  make_room();
  return state == Outbox::State::kLeft;
}

// Who was offered something may still ask for it, and what was lent may still be read, at either
// end.
void Connection::drain(Deadline deadline) {
  while (is_open() && !outbox_.is_broken() && !deadline.expired()) {
    flush();
    if (outbox_.has_left()) {
      if (!stream_->expect_room()) continue;
      pollfd room{stream_->write_descriptor(), POLLOUT, 0};
      poll(&room, 1, deadline.poll_ms());
    } else if (offers_.count() > 0 || leases_.count() > 0 || borrowed_->load() > 0) {
      std::this_thread::sleep_for(kLookForReaders);
    } else {
      return;
    }
  }
}

// A call has room within the limit, and below half of it in any case: one that is too large for the
// limit must pass, too, whatever long calls wait. Requests that wait for answers count, and what
// has not left yet, though nobody may wait for it any more. A call that is made in the course of
// another one does not wait for answers: the other one's may be among them, or wait in a circle for
// a line where the same happens. It does wait for what has not left, since every peer reads.
bool Connection::has_room(uint64_t bytes, bool nested) const noexcept {
  const uint64_t left = outbox_.left_bytes() + offers_.bytes();
  const uint64_t used = nested ? left : std::max(left, pending_.bytes());
  return used <= options_.max_in_flight_bytes / 2 || used + bytes <= options_.max_in_flight_bytes;
}

// In the order in which they came, so that a large one has its turn; nested ones first.
bool Connection::wait_for_room(uint64_t bytes, Deadline deadline) {
  const bool nested = current_call().chain != 0;
  if (nested && has_room(bytes, nested)) return true;
  const Promise<void> room;
  const auto given = room.future().state();
  {
    MutexLock lock(mutex_);
    if (closing_) return true;  // and fails
    auto& waiting = waiting_for_room_;
    waiting.insert(nested ? waiting.begin() : waiting.end(), {bytes, nested, room});
    waiting_calls_.store(waiting.size());
  }
  make_room();  // those that ended just before have told nobody
  try {
    wait(*given, deadline);
  } catch (const Error&) {  // no descriptor to sleep on
    leave_row(*given);
    throw;
  }
  if (!deadline.expired()) return true;
  leave_row(*given);
  return false;
}

void Connection::leave_row(const FutureCore& room) {
  {
    MutexLock lock(mutex_);
    std::erase_if(waiting_for_room_,
                  [&](const Waiting& one) { return one.room.future().state().get() == &room; });
    waiting_calls_.store(waiting_for_room_.size());
  }
  make_room();  // for those behind
}

// Lets the first of those pass that wait, which lets the next one pass when it counts.
void Connection::make_room() {
  if (waiting_calls_.load() == 0) return;
  std::optional<Promise<void>> room;
  {
    MutexLock lock(mutex_);
    if (waiting_for_room_.empty()) return;
    const Waiting& first = waiting_for_room_.front();
    if (!has_room(first.bytes, first.nested)) return;
    room = first.room;
    waiting_for_room_.pop_front();
    waiting_calls_.store(waiting_for_room_.size());
  }
  room->set_value();
}

void Connection::finish(PendingCalls::Taken taken, wire::InFrame* reply, const Error* error) {
  if (!taken.handler) return;
  if (taken.offer != 0) withdraw(taken.offer);  // nobody keeps it any more
  make_room();                                  // not behind the handler
  if (reply) {
    taken.handler->on_reply(std::move(*reply));
  } else {
    taken.handler->on_error(*error);
  }
}

bool Connection::pump(net::Role& role) noexcept {
  std::vector<wire::InFrame> frames;
  std::optional<Error> failure;
  if (read_all_.load(std::memory_order_relaxed)) return false;
  try {
    for (int turn = 0; turn < kReadsPerTurn; ++turn) {
      iovec places[2];
      const int count = reader_->want(places);
      size_t room = 0;
      for (int i = 0; i < count; ++i) room += places[i].iov_len;
      const transport::IoResult result = stream_->read(places, count);
      if (result.status == transport::IoStatus::kWouldBlock) break;
      if (result.status != transport::IoStatus::kOk) {
        failure = lost(result);
        break;
      }
      received_.store(received_bytes() + result.bytes, std::memory_order_relaxed);
      reader_->advance(result.bytes, frames);
      if (result.bytes < room && !frames.empty()) break;  // most likely there is no more
    }
  } catch (const Error& e) {
    failure = e;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kOverloaded, "no memory for a frame that came in");
  }
  if (frames.empty() && !failure) return false;
  // The end of a lease would wake a thread beside those that read what was offered.
  const bool may_lease = role.leases();
  const bool is_long = std::any_of(frames.begin(), frames.end(), Pull::is_long);
  role.may_lease(may_lease && !(is_long && readable_process_ != 0));
  auto batch = delivery(std::move(frames));
  deliveries_.fetch_add(1);  // before anybody else can read the end
  if (failure) end_reading(*failure);
  role.release();
  role.may_lease(may_lease);
  batch.run();
  return true;
}

void Connection::deliver(wire::InFrame&& frame) {
  if (frame.lease != 0) frame.borrowed = borrow(frame.lease);
  if (frame.offer.id != 0) {
    pull(std::move(frame));
  } else if (is_about_offers(frame.header.kind)) {
    on_offer(std::move(frame));
  } else {
    hand_on(std::move(frame));
  }
}

// A frame of which everything is here.
void Connection::hand_on(wire::InFrame&& frame) {
  if (!frame.is_reply()) {
    count_received(frame.header);
    return owner_.on_request(self(), std::move(frame));
  }
  PendingCalls::Taken taken = pending_.take(frame.header.request_id);
  if (taken.handler) {
    finish(std::move(taken), &frame, nullptr);
  } else {
    owner_.on_late_reply(self(), std::move(frame));
  }
}

void Connection::count_received(const wire::FrameHeader& request) noexcept {
  if (is_counted(request)) requests_received_.fetch_add(1, std::memory_order_relaxed);
}

void Connection::answer_ping() {
  if (outbox_.has_left()) return;  // what is on its way says as much, and does not pile up
  wire::OutFrame pong;
  pong.header.kind = wire::Kind::kPong;
  pong.header.flags = wire::kOneWay;
  send(pong);
}

Heartbeat::Traffic Connection::traffic() const noexcept {
  return {received_bytes(), outbox_.sent_bytes(), outbox_.has_left()};
}

Connection::Watch::Watch(std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)) {
  connection_->watches_.fetch_add(1);
  if (!connection_->watching_.load()) connection_->watch_peer();
}

Connection::Watch::~Watch() { connection_->watches_.fetch_sub(1); }

// By somebody who has no deadline.
bool Connection::is_waited_for() const noexcept {
  return pending_.has_endless() || watches_.load() > 0;
}

void Connection::watch_peer() {
  if (options_.silence_timeout <= kNoTimeout || watching_.exchange(true)) return;
  Heartbeat::Action action;
  {
    MutexLock lock(mutex_);
    action = heartbeat_.begin(Clock::now(), traffic());
  }
  if (action.look_at) look_later(*action.look_at);
}

void Connection::look_later(TimePoint at) {
  reactor_.timers().add(at, [weak = weak_from_this()] {
    if (const auto strong = weak.lock()) static_cast<Connection&>(*strong).look_at_peer();
  });
}

void Connection::look_at_peer() {
  if (is_closed()) return;
  bool waiting = is_waited_for();
  if (!waiting) {
    // A call that comes now sees that nobody looks, or is seen here.
    watching_.store(false);
    if (!is_waited_for() || watching_.exchange(true)) return;
    waiting = true;
  }
  Heartbeat::Action action;
  {
    MutexLock lock(mutex_);
    // A line that is not open yet has a deadline of its own.
    action = is_open() ? heartbeat_.look(Clock::now(), traffic(), waiting)
                       : heartbeat_.begin(Clock::now(), traffic());
  }
  if (action.lost) {
    return close(Error(Code::kDisconnected, "nothing was heard from it for " +
                                                describe(options_.silence_timeout) +
                                                ", and it does not answer pings")
                     .advice("find out whether its host is up and its process runs; "
                             "WorkerOptions::silence_timeout says how long to wait"));
  }
  if (action.look_at) look_later(*action.look_at);
  if (!action.ping) return;
  wire::OutFrame ping;
  ping.header.kind = wire::Kind::kPing;
  ping.header.flags = wire::kOneWay;
  send(ping);
}

void Connection::expire_later(TimePoint at) {
  reactor_.timers().add(at, [weak = weak_from_this(), at] {
    if (const auto strong = weak.lock()) static_cast<Connection&>(*strong).expire_at(at);
  });
}

void Connection::expire_at(TimePoint at) {
  Deadline next;
  auto expired = pending_.expire(at, Clock::now(), next);
  if (!next.is_never()) expire_later(next.at());
  std::vector<uint64_t> requests;
  for (const PendingCalls::Taken& call : expired) requests.push_back(call.id);
  recall(std::move(requests));
  end_calls(std::move(expired), Error(Code::kTimeout, "no answer in time"), [] {});
}

std::vector<wire::FunctionRecord> Connection::functions() const {
  MutexLock lock(mutex_);
  return functions_;
}

bool Connection::carries() const {
  MutexLock lock(mutex_);
  return carries_locked();
}

std::string Connection::transport() const {
  MutexLock lock(mutex_);
  if (!stream_) return {};
  const std::string all = stream_->describe();
  return all.substr(0, all.find_first_of(": "));
}

Route Connection::route() const {
  Route route;
  route.worker = peer_.name;
  route += moved();
  MutexLock lock(mutex_);
  route.transport = stream_ ? stream_->describe() : "none";
  route.refused = refused_;
  route.reads_memory = reads_.load();
  route.is_read = may_offer_.load();
  route.why_not_read = why_not_read_;
  route.why_not_mapped = why_not_mapped_;
  route.lanes = static_cast<int>(lanes_.size());
  const BytesMoved by_lanes = by_lanes_locked();
  route.bytes_by_lanes = by_lanes.bytes_sent + by_lanes.bytes_received;
  return route;
}

}  // namespace farspan::agent
