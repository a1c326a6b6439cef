// Large segments that are not sent: the receiver reads them out of the sender's memory.
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/process_memory.h>
#include <farspan/rpc/agent/connection.h>
#include <farspan/rpc/agent/pull.h>

namespace farspan::agent {
namespace {

// In place of an errno: bytes that are to be sent, and come by lanes.
constexpr int kNotTried = -1;

constexpr const char* kLetThemRead =
    "let processes of one user read each other (kernel.yama.ptrace_scope=0; in containers "
    "--cap-add=SYS_PTRACE)";

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

// Reading works when what the peer says is at a place in its memory is there.
void Connection::agree_on_reading_locked(const wire::Hello& peer) {
  const pid_t process = stream_->peer_process();
  if (options_.cross_memory_attach == CrossMemoryAttach::kForbidden) {
    why_not_read_ = "this worker does not allow it";
  } else if (!(peer.features & wire::kReadsOffers)) {
    why_not_read_ = "it does not allow it";
  } else if (process == 0) {
    attaches_ = true;
    why_not_read_ = stream_->is_local()          ? "it is in another process namespace"
                    : stream_->crosses_network() ? "another host"
                                                 : "it is reached through TCP";
  } else {
    attaches_ = true;
    wire::InstanceId found;
    const int error = net::read_process_memory(process, peer.probe, &found, sizeof found);
    if (error != 0) {
      why_not_read_ = std::string("this worker cannot read its memory: ") + std::strerror(error);
    } else if (found != peer.instance) {
      why_not_read_ = "its process cannot be told from others";
    } else {
      readable_process_ = process;
      reads_.store(true);
      mapped_blocks_ =
          net::MappedBlocks::make(process, reactor_.timers(),
                                  [weak = weak_from_this()](uint64_t block) {
                                    const auto strong = weak.lock();
                                    if (!strong) return;
                                    auto& line = static_cast<Connection&>(*strong);
                                    line.send_about_offer(wire::Kind::kReturned, block, 0);
                                  },
                                  {.bytes = options_.mapped_bytes});
    }
  }
  has_lanes_ =
      options_.lanes > 0 && (peer.features & wire::kHasLanes) && stream_->crosses_network();
  may_offer_.store(has_lanes_ || readable_process_ != 0);  // until it cannot read this one's
  may_hand_over_.store(peer.features & wire::kMapsBlocks);
}

// What both workers allow, and the system does not, is seen where nothing else was asked for: once,
// for it is the same with all workers of the host.
void Connection::log_unreadable(const std::string& text, const std::string& why) {
  const bool is_news = owner_.is_news(ConnectionOwner::kAnyPeer, {why});
  log(is_news ? LogLevel::kWarning : LogLevel::kInfo, "agent",
      is_news ? text + "; " + kLetThemRead : text);
}

// Once it is open. An ASK for no offer says that nothing offered could be read.
void Connection::tell_about_route(const std::vector<std::string>& in_vain) {
  const bool is_worse = !in_vain.empty() && owner_.is_news(peer_.rank, in_vain);
  const Route route = this->route();
  std::string text = "worker '" + route.worker + "' is reached through " + route.transport;
  for (const std::string& why : route.refused) text += "; not " + why;
  if (stream_->is_local()) {
    text += route.why_not_read.empty()
                ? "; large tensors are read out of memory"
                : "; no tensors are read out of memory: " + route.why_not_read;
  }
  const bool is_refused = stream_->is_local() && attaches_ && !route.reads_memory;
  if (is_refused && !is_worse && stream_->peer_process() != 0) {
    log_unreadable(text, route.why_not_read);
  } else {
    log(is_worse ? LogLevel::kWarning : LogLevel::kInfo, "agent", text);
  }
  if (is_refused) send_about_offer(wire::Kind::kAsk, 0, EPERM);
}

// No call is made on a line on which reading is required, and does not work.
bool Connection::ends_before_it_opens() {
  if (stream_->crosses_network() || reads_.load()) return false;
  return ends_where_reading_is_required(
      route().why_not_read, std::string(kLetThemRead) + ", or use CrossMemoryAttach::kAllowed");
}

// False: it is not, and the bytes come some other way.
bool Connection::ends_where_reading_is_required(const std::string& why, const std::string& advice) {
  if (options_.cross_memory_attach != CrossMemoryAttach::kRequired) return false;
  close(Error(Code::kUnavailable, "tensors cannot be read out of memory: " + why).advice(advice));
  return true;
}

void Connection::stop_offering(uint64_t error) {
  const std::string why =
      std::string("it cannot read this worker's memory: ") + std::strerror(static_cast<int>(error));
  {
    MutexLock lock(mutex_);
    if (!may_offer_.exchange(false)) return;
    why_not_read_ = why;
  }
  if (ends_where_reading_is_required(
          why, "look at that worker's log, or use CrossMemoryAttach::kAllowed")) {
    return;
  }
  log_unreadable("worker '" + peer_.name + "': no tensors are read out of memory: " + why, why);
}

// The peer is told with each ASK, and stops to offer.
void Connection::note_unreadable(int error) {
  const std::string why =
      std::string("this worker cannot read its memory any more: ") + std::strerror(error);
  {
    MutexLock lock(mutex_);
    if (!reads_.exchange(false)) return;
    why_not_read_ = why;
  }
  if (ends_where_reading_is_required(
          why, "look at what has changed for this process, or use CrossMemoryAttach::kAllowed")) {
    return;
  }
  log_unreadable("worker '" + peer_.name + "': its tensors are not read out of memory: " + why,
                 why);
}

uint64_t Connection::offer(wire::OutFrame& frame) {
  if (!may_offer_.load(std::memory_order_acquire)) return 0;  // behind what open() has set
  if (has_lanes_) return offers_.make(frame, options_.lane_bytes);
  return offers_.make(frame, options_.offer_bytes, may_hand_over_.load(std::memory_order_relaxed));
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
  if (!attaches_ && (!has_lanes_ || !frame.handed_over.empty())) {
    return close(Error(Code::kCorrupt, "it offers its memory, which was not agreed on"));
  }
  try {
    if (readable_process_ == 0) decline_blocks(frame);
  } catch (const std::bad_alloc&) {
    return close(Error(Code::kOverloaded, "no memory for what it hands over"));
  }
  deliveries_.fetch_add(1);
  // Which may be heard of before what tell_about_route() says.
  if (readable_process_ == 0) return on_pulled(std::move(frame), has_lanes_ ? kNotTried : EPERM);
  std::shared_ptr<Pull> pull;
  try {
    if (!frame.handed_over.empty()) map_blocks(frame);
    pull = std::make_shared<Pull>(readable_process_, std::move(frame), reactor_.max_spin(),
                                  [self = self()](wire::InFrame pulled, int error) {
                                    self->on_pulled(std::move(pulled), error);
                                  });
  } catch (const std::bad_alloc&) {
    close(Error(Code::kOverloaded, "no memory to read what it offers"));
  } catch (const Error& why) {
    close(why);
  }
  if (!pull) {
    if (ends_last()) close_ended();
    return;
  }
  const auto polled = pull->run([&] { reactor_.run_elsewhere(std::make_unique<PullTask>(pull)); });
  if (polled) reactor_.count_spin(polled->took, !polled->in_vain);
}

// Where this worker can read nothing of the peer's it maps nothing, either: the bytes are asked
// for, and the blocks stay the peer's. It hands over until it hears that its offers are not read.
void Connection::decline_blocks(wire::InFrame& frame) {
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (!frame.is_handed_over(i)) continue;
    frame.segments[i] = options_.received->allocate(frame.segments[i].size());
    send_about_offer(wire::Kind::kReturned, std::exchange(frame.handed_over[i].block, 0), 0);
  }
}

// A block that cannot be mapped here is read like any other memory.
//   throws  Error kCorrupt, kOverloaded: its line must end
void Connection::map_blocks(wire::InFrame& frame) {
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (!frame.is_handed_over(i)) continue;
    wire::HandedOver& place = frame.handed_over[i];
    Buffer& segment = frame.segments[i];
    try {
      const net::BlockName block{place.block, place.block_bytes,
                                 static_cast<int>(place.descriptor)};
      segment = mapped_blocks_->map(block, place.offset, segment.size());
      mapped_bytes_.fetch_add(segment.size());
    } catch (const Error& why) {
      if (why.code() == Code::kCorrupt) throw;
      const bool is_news = owner_.is_news(ConnectionOwner::kAnyPeer, {why.what()});
      log(is_news ? LogLevel::kWarning : LogLevel::kDebug, "agent",
          "a block of worker '" + peer_.name + "' is copied: " + why.what());
      {
        MutexLock lock(mutex_);
        why_not_mapped_ = why.what();
      }
      segment = mapped_blocks_->copy_for(place.block, options_.received->allocate(segment.size()));
      place.block = 0;
    }
  }
}

void Connection::on_pulled(wire::InFrame frame, int error) {
  const uint64_t id = frame.offer.id;
  if (error != 0) {
    const bool is_gone = error == ESRCH;  // as its line's end says
    if (error != ESTALE && error != kNotTried && !is_gone) note_unreadable(error);
    asked_.keep(std::move(frame));
    send_about_offer(wire::Kind::kAsk, id, error == kNotTried ? 0 : static_cast<uint64_t>(error));
    if (ends_last()) close_ended();
    return;
  }
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (frame.offered[i] == 0 || frame.is_handed_over(i)) continue;
    read_bytes_.fetch_add(frame.segments[i].size());
  }
  send_about_offer(wire::Kind::kTaken, id, 0);
  be_whole(frame);
  std::vector<wire::InFrame> whole;
  whole.push_back(std::move(frame));
  deliver_counted(std::move(whole));
}

void Connection::on_offer(wire::InFrame&& frame) {
  const uint64_t id = frame.header.request_id;
  if (frame.header.kind == wire::Kind::kTaken) {
    forget_pieces(id);
    offers_.withdraw(id);
    return make_room();
  }
  if (frame.header.kind == wire::Kind::kReturned) return offers_.take_back(id);
  if (frame.header.kind == wire::Kind::kReleased) return leases_.end(id);
  if (frame.header.kind == wire::Kind::kBytes) return on_bytes(std::move(frame));
  uint64_t error = 0;
  if (frame.meta.size() >= sizeof error) std::memcpy(&error, frame.meta.data(), sizeof error);
  if (id == 0) return stop_offering(error);
  on_ask(id, error);
}

// Whoever lets go of it last tells the peer, on any thread.
class Connection::Borrowed {
 public:
  Borrowed(Connection& line, uint64_t lease)
      : line_(line.weak_from_this()), count_(line.borrowed_), lease_(lease) {
    count_->fetch_add(1);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed() {
    if (const auto strong = line_.lock()) {
      auto& line = static_cast<Connection&>(*strong);
      // Also while it is opening: what it has lent may have come, and gone, before open() is done.
      if (!line.is_closed()) line.send_about_offer(wire::Kind::kReleased, lease_, 0);
    }
    count_->fetch_sub(1);
  }

 private:
  const std::weak_ptr<net::Source> line_;
  const std::shared_ptr<std::atomic<int>> count_;
  const uint64_t lease_;
};

std::shared_ptr<void> Connection::borrow(uint64_t lease) {
  return std::make_shared<Borrowed>(*this, lease);
}

void Connection::on_ask(uint64_t id, uint64_t error) {
  // What was withdrawn cannot be read by anybody.
  const bool could_not = error != ESTALE && !has_lanes_;
  if (could_not && !offers_.segments_of(id).empty()) stop_offering(error);
  bool lacks_lanes = false;
  {
    MutexLock lock(answering_);
    const std::vector<Buffer> segments = offers_.segments_of(id);
    const bool by_lanes = has_lanes_ && error == 0 && !segments.empty();
    if (by_lanes && send_in_pieces(id, segments)) return;
    lacks_lanes = by_lanes;
    send_whole(id);
  }
  if (lacks_lanes && !lanes_wanted_.exchange(true)) owner_.on_lanes_wanted(self());
  make_room();
}

// With nothing where it was withdrawn.
void Connection::send_whole(uint64_t offer) {
  send_about_offer(wire::Kind::kBytes, offer, 0, offers_.segments_of(offer));
  offers_.withdraw(offer);
}

// The offered segments of a frame that was kept for them.
void Connection::on_bytes(wire::InFrame&& bytes) {
  std::optional<wire::InFrame> frame = asked_.take(bytes.header.request_id);
  if (!frame) return;
  if (bytes.segments.empty()) return drop(frame->header);
  auto next = bytes.segments.begin();
  for (size_t i = 0; i < frame->segments.size(); ++i) {
    if (frame->offered[i] == 0) continue;
    if (next == bytes.segments.end() || next->size() != frame->segments[i].size()) {
      return close(Error(Code::kCorrupt, "it sent other bytes than it had offered"));
    }
    frame->segments[i] = std::move(*next++);
  }
  be_whole(*frame);
  hand_on(std::move(*frame));
}

// Nothing tells it from a frame that came at once.
void Connection::be_whole(wire::InFrame& frame) noexcept {
  frame.offer = {};
  frame.lease = 0;  // it has what is borrowed
  frame.handed_over.clear();
  frame.header.flags &= static_cast<uint16_t>(~(wire::kOffered | wire::kHandsOver));
}

// The call is over, and what it offered may change: nothing of it leaves any more. The peer that
// has asked for it, and waits, hears of it.
void Connection::withdraw(uint64_t offer) {
  const bool was_kept = offers_.withdraw(offer);  // else it has been taken, or sent
  if (offer == 0 || (!was_kept && !outbox_.has_left() && !has_lanes_)) return;
  bool is_missed = false;
  {
    MutexLock lock(answering_);  // who is at it finds the offer withdrawn, or has handed it over
    const Outbox::GivenUp given_up = outbox_.give_up_offer(offer);
    if (given_up.broken) close_broken();
    is_missed = !given_up.dropped.empty();
    for (const auto& lane : lanes()) is_missed |= lane->give_up(offer);
    if (is_missed) forget_pieces(offer);
  }
  if (is_missed) send_about_offer(wire::Kind::kBytes, offer, 0);
  if (flush()) reactor_.flush_when_writable(*this);  // others may have left it to this thread
}

// Nobody waits any more for what becomes of a request that was withdrawn.
void Connection::drop(const wire::FrameHeader& withdrawn) {
  if (!(withdrawn.flags & wire::kReply)) return count_received(withdrawn);
  const Error why(Code::kCancelled, "its answer was withdrawn before it could be read");
  finish(pending_.take(withdrawn.request_id), nullptr, &why);
}

}  // namespace farspan::agent
