// Large segments that are not sent: the receiver reads them out of the sender's memory.
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/agent/connection.h>
#include <farspan/rpc/agent/pull.h>

namespace farspan::agent {
namespace {

// A second thread for a large one. It may come when all has been read.
class PullTask final : public net::Task {
 public:
  explicit PullTask(std::shared_ptr<Pull> pull) : pull_(std::move(pull)) { patient = true; }
  void run() noexcept override { pull_->help(); }
  void reject(const Error&) noexcept override {}

 private:
  const std::shared_ptr<Pull> pull_;
};

}  // namespace

uint64_t Connection::offer(wire::OutFrame& frame) {
  return may_offer_.load(std::memory_order_relaxed) ? offers_.make(frame, limits_.offer_bytes) : 0;
}

// What is about offers has the offer's id for a request's.
void Connection::send_about_offer(wire::Kind kind, uint64_t id, uint64_t error,
                                  std::vector<Buffer> segments) {
  wire::OutFrame frame;
  frame.header.kind = kind;
  frame.header.flags = wire::kOneWay;
  frame.header.request_id = id;
  if (error != 0) frame.meta = std::as_bytes(std::span(&error, 1));
  frame.segments = std::move(segments);
  after_send(outbox_.send(frame), false);
}

// Other threads of the reactor may help, and the last one delivers the frame.
void Connection::pull(wire::InFrame&& frame) {
  if (!attaches_) {
    return close(Error(Code::kCorrupt, "it offers its memory, which was not agreed on"));
  }
  deliveries_.fetch_add(1);
  if (readable_process_ == 0) return on_pulled(std::move(frame), ESRCH);
  std::shared_ptr<Pull> pull;
  try {
    pull = std::make_shared<Pull>(readable_process_, std::move(frame),
                                  [self = self()](wire::InFrame pulled, int error) {
                                    self->on_pulled(std::move(pulled), error);
                                  });
  } catch (const std::bad_alloc&) {
    close(Error(Code::kOverloaded, "no memory to read what it offers"));
    if (ends_last()) close_ended();
    return;
  }
  if (pull->is_large()) reactor_.run_elsewhere(std::make_unique<PullTask>(pull));
  pull->run();
}

void Connection::on_pulled(wire::InFrame frame, int error) {
  const uint64_t id = frame.offer.id;
  if (error == 0) {
    send_about_offer(wire::Kind::kTaken, id, 0);
    hand_on_whole(std::move(frame));
  } else {
    if (error != ESTALE && !has_failed_to_read_.exchange(true)) {
      log(LogLevel::kInfo, "agent",
          "this worker cannot read the memory of worker '" + peer_.name + "' (" + strerror(error) +
              "): large tensors come through " + route());
    }
    {
      MutexLock lock(mutex_);
      if (!closing_) asked_.emplace(id, std::move(frame));
    }
    send_about_offer(wire::Kind::kAsk, id, static_cast<uint64_t>(error));
  }
  if (ends_last()) close_ended();
}

void Connection::on_offer(wire::InFrame&& frame) {
  const uint64_t id = frame.header.request_id;
  if (frame.header.kind == wire::Kind::kTaken) {
    offers_.withdraw(id);
    return make_room();
  }
  if (frame.header.kind == wire::Kind::kBytes) return on_bytes(std::move(frame));
  uint64_t error = 0;
  if (frame.meta.size() >= sizeof error) std::memcpy(&error, frame.meta.data(), sizeof error);
  std::vector<Buffer> segments = offers_.segments_of(id);
  // What was withdrawn cannot be read by anybody.
  if (!segments.empty() && error != ESTALE) may_offer_.store(false);
  send_about_offer(wire::Kind::kBytes, id, 0, std::move(segments));
  offers_.withdraw(id);
  make_room();
}

// The offered segments of a frame that was kept for them.
void Connection::on_bytes(wire::InFrame&& bytes) {
  wire::InFrame frame;
  {
    MutexLock lock(mutex_);
    const auto found = asked_.find(bytes.header.request_id);
    if (found == asked_.end()) return;
    frame = std::move(found->second);
    asked_.erase(found);
  }
  if (bytes.segments.empty()) return drop(frame.header);
  auto next = bytes.segments.begin();
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (frame.offered[i] == 0) continue;
    if (next == bytes.segments.end() || next->size() != frame.segments[i].size()) {
      return close(Error(Code::kCorrupt, "it sent other bytes than it had offered"));
    }
    frame.segments[i] = std::move(*next++);
  }
  hand_on_whole(std::move(frame));
}

void Connection::hand_on_whole(wire::InFrame&& frame) {
  frame.offer = {};
  frame.header.flags &= static_cast<uint16_t>(~wire::kOffered);
  hand_on(std::move(frame));
}

// Nobody waits any more for what becomes of a request that was withdrawn.
void Connection::drop(const wire::FrameHeader& withdrawn) {
  if (!(withdrawn.flags & wire::kReply)) return count_received(withdrawn);
  const Error why(Code::kCancelled, "its answer was withdrawn before it could be read");
  finish(pending_.take(withdrawn.request_id), nullptr, &why);
}

}  // namespace farspan::agent
