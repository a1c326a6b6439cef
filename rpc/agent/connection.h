// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Connection: this worker's end of the line to one other worker. It exists from the first call on:
// what is sent before the line is open waits in the outbox.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/mapped_blocks.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/net/shared_blocks.h>
#include <farspan/c10d/transport/transport.h>
#include <farspan/rpc/agent/asked.h>
#include <farspan/rpc/agent/greeting.h>
#include <farspan/rpc/agent/heartbeat.h>
#include <farspan/rpc/agent/lane.h>
#include <farspan/rpc/agent/leases.h>
#include <farspan/rpc/agent/offers.h>
#include <farspan/rpc/agent/outbox.h>
#include <farspan/rpc/agent/pending_calls.h>
#include <farspan/rpc/agent/route.h>
#include <farspan/rpc/agent/unsent_call.h>

namespace farspan::agent {

class Connection;

// What a connection tells the agent. Threading: from any thread, never under a lock.
class ConnectionOwner {
 public:
  virtual void on_request(const std::shared_ptr<Connection>& connection, wire::InFrame&& frame) = 0;
  // An answer to a call that has expired.
  virtual void on_late_reply(const std::shared_ptr<Connection>& connection,
                             wire::InFrame&& frame) = 0;
  virtual void on_closed(const std::shared_ptr<Connection>& connection, const Error& why) = 0;
  // Before that, where it has broken: of this call nothing has left, and its handler has heard
  // nothing. Must not block. Returns why no other line takes it: it ends with that.
  virtual std::optional<Error> on_unsent(const std::shared_ptr<Connection>& connection,
                                         UnsentCall& call) = 0;
  // Large segments leave: lanes would carry them, and there are none. Once, until all that there
  // were have ended, or a while after those that were dialled did not come.
  virtual void on_lanes_wanted(const std::shared_ptr<Connection>& connection) = 0;
  // Whether it was not said before that better ways to this peer, or to any, were tried in vain for
  // these reasons.
  static constexpr int kAnyPeer = -1;
  virtual bool is_news(int peer, const std::vector<std::string>& in_vain) = 0;

 protected:
  ~ConnectionOwner() = default;
};

// Why better ways were not taken, each "unix: .."; and those among them that should have worked.
struct RefusedWays {
  std::vector<std::string> reasons, in_vain;
};

struct ConnectionOptions {
  uint64_t max_in_flight_bytes = uint64_t{256} << 20;  // of requests, see wait_for_room()
  Millis silence_timeout{30'000};                      // of a peer, see Heartbeat
  CrossMemoryAttach cross_memory_attach = CrossMemoryAttach::kAllowed;
  uint64_t offer_bytes = uint64_t{64} << 10;                   // segments from this size on
  int lanes = 4;                                               // to a peer on another host; 0: none
  uint64_t lane_bytes = uint64_t{4} << 20;                     // segments from this size on
  std::shared_ptr<net::MemoryPool> received = nullptr;         // for what comes
  std::shared_ptr<net::SharedBlocks> shared_blocks = nullptr;  // that may be handed over
  std::shared_ptr<net::MappedBytes> mapped_bytes = nullptr;    // of blocks that peers hand over
};

// Threading: every method from any thread. Lifetime: the reactor and the owner outlive it.
class Connection final : public net::Source, public ReplyRoute, private LaneOwner {
 public:
  Connection(net::Reactor& reactor, ConnectionOwner& owner, WorkerInfo peer,
             ConnectionOptions options);
  ~Connection() override;

  // The handshake is over, and has not failed: from now on frames flow. Once; a later one has no
  // effect.
  //   refused  better ways than this one: for route(), and the log
  void open(Greeting::Outcome greeted, RefusedWays refused = {});

  // What tells it apart at both ends; 0 until it is open, where the peer dialled it.
  uint64_t number() const noexcept { return number_.load(); }
  // One that the peer, or this worker, has dialled to be beside this line; as soon as it carries:
  // the peer dials when it has heard the line. False: it takes no more.
  bool takes_lanes() const;
  void add_lane(Greeting::Outcome greeted);
  // Those that this worker has dialled have come, or will not. Where there is none, others are
  // wanted later.
  void lanes_were_dialled();

  // Sends a request; `handler` hears of the answer or of the failure.
  //   had_room  it had room on the line that it comes from: it waits for none, and can be cancelled
  //             when this returns, not before
  //   returns   nothing, or why it was not sent: kInvalidArgument (it is too large for the wire),
  //             kTimeout (no room in time), or how the line has ended. Then nothing of it has left,
  //             `handler` hears nothing, and the frame is as it was. (One that is made in the very
  //             moment in which a broken line ends may end with it instead.)
  struct Refusal {
    Error why;
    bool for_next_line = false;  // which may take it: this one has broken
  };
  std::optional<Refusal> call(wire::OutFrame& frame, Deadline deadline,
                              const std::shared_ptr<ReplyHandler>& handler, bool will_wait,
                              bool had_room = false);
  // Ends the call of `handler` as its deadline would, with kCancelled; false: it has none here.
  bool cancel(const ReplyHandler& handler);
  // In place of an answer that is too large for the wire a failed one is sent; another frame is
  // dropped, and logged.
  void send(wire::OutFrame& frame);
  void send_reply(wire::OutFrame& frame) override { send(frame); }
  // The peer wants a sign of life.
  void answer_ping();

  // Ends the connection: every pending call fails with `why`, but those that go by the next line.
  // Idempotent.
  void close(const Error& why);
  // The peer said that it ends by itself: its end is no failure.
  void expect_end() noexcept { ending_.store(true); }
  bool ending() const noexcept { return ending_.load(); }
  // The peer said that it ends this line alone, on purpose, and why.
  void expect_end_of_line(const Error& why);
  // Its stream has ended, or failed, though neither end had said so. Not where the peer was silent:
  // it would be on the next line, too.
  bool has_broken() const noexcept { return has_broken_.load(); }

  // While one lives, a peer that is silent is given up, as for a call without a deadline.
  class Watch {
   public:
    explicit Watch(std::shared_ptr<Connection> connection);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    const std::shared_ptr<Connection> connection_;
  };

  // Waits until everything that was sent has left; at most until the deadline.
  void drain(Deadline deadline);
  // Waits for a future that traffic on this line will bring; false when the deadline passed.
  bool wait(FutureCore& future, Deadline deadline, net::Expected expected = {});

  const WorkerInfo& peer() const noexcept { return peer_; }
  bool leads_back() const noexcept override { return !is_closed(); }
  bool is_open() const noexcept { return state_.load() == State::kOpen; }
  bool is_closed() const noexcept { return state_.load() == State::kClosed; }
  // What is sent goes, and what comes is delivered: somewhat before it counts as open.
  bool carries() const;
  // Ready when the line is open, or has failed.
  Future<void> opened() const { return opened_.future(); }
  std::vector<wire::FunctionRecord> functions() const;
  Route route() const;
  std::string transport() const;  // its kind alone, "shm"; empty: it has never been open

  int64_t calls_in_flight() const noexcept { return pending_.count(); }
  // What is under way is in the one number, and not in the other end's other one.
  uint64_t requests_sent() const noexcept { return requests_sent_.load(); }
  uint64_t requests_received() const noexcept { return requests_received_.load(); }
  uint64_t sent_bytes() const noexcept { return outbox_.sent_bytes(); }
  uint64_t received_bytes() const noexcept { return received_.load(std::memory_order_relaxed); }
  BytesMoved moved() const;
  uint64_t offered_bytes() const noexcept { return offers_.bytes(); }
  uint64_t handed_over_bytes() const noexcept { return offers_.handed_over(); }

  // net::Source
  int descriptor() const noexcept override { return stream_->read_descriptor(); }
  int write_descriptor() const noexcept override {
    return stream_ ? stream_->write_descriptor() : -1;
  }
  uint64_t passed_bytes() const noexcept override { return received_bytes() + sent_bytes(); }
  bool expect_input() noexcept override { return stream_->expect_input(); }
  void expect_no_input() noexcept override { stream_->expect_no_input(); }
  bool expect_room() noexcept override { return !stream_ || stream_->expect_room(); }
  bool pump(net::Role& role) noexcept override;
  bool flush() noexcept override;

 private:
  class Borrowed;
  enum class State { kOpening, kOpen, kClosed };
  struct Waiting {
    uint64_t bytes;
    bool nested;
    Promise<void> room;
  };

  Error why_closed() const;
  void close_broken();
  void say_why_it_ends(const Error& why) noexcept;
  void after_send(Outbox::State state, bool will_wait);
  void recall(std::vector<uint64_t> requests);
  bool has_room(uint64_t bytes, bool nested) const noexcept;
  // Waits while too many bytes are under way; false when the deadline passed first.
  bool wait_for_room(uint64_t bytes, Deadline deadline);
  void leave_row(const FutureCore& room);
  void make_room();
  Refusal refuse(wire::OutFrame& frame);
  std::vector<PendingCalls::Taken> close_calls();
  using Moving = std::pair<PendingCalls::Taken*, UnsentCall>;
  std::vector<Moving> take_unsent(const std::vector<Outbox::Unsent>& requests,
                                  std::vector<PendingCalls::Taken>& calls) noexcept;
  void set_deadline(wire::OutFrame& frame, Deadline deadline);
  void end_calls(std::vector<PendingCalls::Taken> calls, const Error& why,
                 const std::function<void()>& last);
  void finish(PendingCalls::Taken taken, wire::InFrame* reply, const Error* error);
  auto delivery(std::vector<wire::InFrame> frames);
  void deliver_all(std::vector<wire::InFrame> frames);
  void deliver_counted(std::vector<wire::InFrame> frames);
  void deliver(wire::InFrame&& frame);
  void hand_on(wire::InFrame&& frame);
  void count_received(const wire::FrameHeader& request) noexcept;
  void end_reading(const Error& why);
  bool ends_last() noexcept;
  void close_ended();
  void withdraw(uint64_t offer);
  std::vector<std::shared_ptr<Lane>> lanes() const;
  BytesMoved by_lanes_locked() const FARSPAN_REQUIRES(mutex_);
  bool carries_locked() const FARSPAN_REQUIRES(mutex_) { return stream_ && !is_closed(); }
  bool send_in_pieces(uint64_t offer, const std::vector<Buffer>& segments)
      FARSPAN_REQUIRES(answering_);
  void send_whole(uint64_t offer) FARSPAN_REQUIRES(answering_);
  void forget_pieces(uint64_t offer);
  Buffer place_of(uint64_t offer, const wire::PieceHeader& piece, size_t bytes) override;
  void on_pieces(std::vector<wire::InFrame> pieces) override;
  void on_lane_end(Lane& lane, const Error& why) override;
  void pull(wire::InFrame&& frame);
  void map_blocks(wire::InFrame& frame);
  void decline_blocks(wire::InFrame& frame);
  void on_pulled(wire::InFrame frame, int error);
  void on_offer(wire::InFrame&& frame);
  std::shared_ptr<void> borrow(uint64_t lease);
  void on_ask(uint64_t id, uint64_t error);
  void on_bytes(wire::InFrame&& frame);
  static void be_whole(wire::InFrame& frame) noexcept;
  void drop(const wire::FrameHeader& withdrawn);
  uint64_t offer(wire::OutFrame& frame);
  void agree_on_reading_locked(const wire::Hello& peer) FARSPAN_REQUIRES(mutex_);
  void tell_about_route(const std::vector<std::string>& in_vain);
  void log_unreadable(const std::string& text, const std::string& why);
  void stop_offering(uint64_t error);
  void note_unreadable(int error);
  bool ends_before_it_opens();
  bool ends_where_reading_is_required(const std::string& why, const std::string& advice);
  void send_about_offer(wire::Kind kind, uint64_t id, uint64_t error,
                        std::vector<Buffer> segments = {});
  void send_instead(const wire::OutFrame& frame, const Error& why);
  Heartbeat::Traffic traffic() const noexcept;
  bool is_waited_for() const noexcept;
  void watch_peer();
  void look_at_peer();
  void look_later(TimePoint at);
  void expire_later(TimePoint at);
  void expire_at(TimePoint at);
  std::shared_ptr<Connection> self() {
    return std::static_pointer_cast<Connection>(shared_from_this());
  }

  net::Reactor& reactor_;
  ConnectionOwner& owner_;
  const WorkerInfo peer_;
  const ConnectionOptions options_;

  std::atomic<State> state_{State::kOpening};
  std::atomic<bool> ending_{false};
  std::atomic<bool> has_broken_{false};  // set before is_closed()
  std::atomic<uint64_t> received_{0};    // written by the holder of the role
  std::atomic<uint64_t> requests_sent_{0}, requests_received_{0};
  std::atomic<int> deliveries_{
      0};  // of frames that were read: the end of the line comes after them
  std::atomic<bool> read_all_{false};     // the stream has ended, or is to be read no more
  std::atomic<size_t> waiting_calls_{0};  // waiting_for_room_.size()
  std::atomic<bool> watching_{false};     // the heartbeat looks, or is about to
  std::atomic<int> watches_{0};
  Promise<void> opened_;
  PendingCalls pending_;
  Outbox outbox_;
  Offers offers_;
  Leases leases_;
  const std::shared_ptr<std::atomic<int>> borrowed_ = std::make_shared<std::atomic<int>>(0);
  Asked asked_;
  std::atomic<uint64_t> number_;
  std::atomic<bool> may_offer_{false};      // as far as is known; its setting releases open()'s
  std::atomic<bool> may_hand_over_{false};  // likewise
  std::atomic<uint64_t> read_bytes_{0}, mapped_bytes_{0};

  // Set by open(), constant after it; the reader belongs to the holder of the role.
  bool attaches_ = false;                             // offers are agreed on,
  bool has_lanes_ = false;                            // or lanes for them
  pid_t readable_process_ = 0;                        // the peer's; 0: its memory cannot be read
  std::shared_ptr<net::MappedBlocks> mapped_blocks_;  // null: its memory cannot be read
  std::unique_ptr<transport::Stream> stream_;
  std::unique_ptr<wire::FrameReader> reader_;

  // Held while what was asked for is handed to outboxes: an offer is withdrawn before, or after.
  Mutex answering_;
  std::atomic<bool> lanes_wanted_{false};

  mutable Mutex mutex_;
  std::vector<std::string> refused_ FARSPAN_GUARDED_BY(mutex_);
  std::string why_not_read_ FARSPAN_GUARDED_BY(mutex_);
  std::string why_not_mapped_ FARSPAN_GUARDED_BY(mutex_);
  std::atomic<bool> reads_{false};  // until the peer's memory cannot be read
  std::vector<wire::FunctionRecord> functions_ FARSPAN_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_for_room_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Lane>> lanes_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> in_pieces_ FARSPAN_GUARDED_BY(mutex_);  // offers, until taken
  BytesMoved by_ended_lanes_ FARSPAN_GUARDED_BY(mutex_);
  std::chrono::seconds lanes_pause_ FARSPAN_GUARDED_BY(mutex_){1};  // before others are dialled
  Heartbeat heartbeat_ FARSPAN_GUARDED_BY(mutex_);
  bool closing_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::optional<Error> why_closed_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> why_ended_ FARSPAN_GUARDED_BY(mutex_);    // the stream, or its reading
  std::optional<Error> why_of_peer_ FARSPAN_GUARDED_BY(mutex_);  // where it has said so
};

}  // namespace farspan::agent
