// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RRefProtocol: one worker's part in keeping remote values alive as long as any handle to them, on
// any worker, and not longer. PROTOCOL.md is the law; this is its state machine.
// Source: PyTorch design note "Remote Reference Protocol"; where it differs: PROTOCOL.md.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rref/id.h>
#include <farspan/rref/protocol_messages.h>
#include <farspan/rref/protocol_outbox.h>
#include <farspan/rref/protocol_tables.h>

namespace farspan::rref {

// Events go in as method calls, with the time; what is to be done comes out of take(). It does no
// I/O, has no thread and reads no clock: the agent and the tests drive it alike.
//
// A handle is what create(), create_local() and received() return, until drop(). Whoever holds a
// value (the room above) destroys it when take() says so, and at no other time.
//
// Threading: the caller serialises all methods, with one mutex say. No method blocks or calls back.
//            Call take() after each event, or after several; do what it says outside of the mutex.
// Errors:    those that throw change nothing when they do. Late, doubled and unknown events are
//            ignored, unless said otherwise.
class RRefProtocol {
 public:
  explicit RRefProtocol(ProtocolOptions options);
  ~RRefProtocol();
  RRefProtocol(const RRefProtocol&) = delete;
  RRefProtocol& operator=(const RRefProtocol&) = delete;

  // ---- who is there: protocol_peers.cc ----

  // A connection to this run of `name` is up. An earlier run of its rank is dead from now on.
  void on_peer_joined(WorkerRun run, std::string name, TimePoint now);
  // kUnreachable: it may come back within its lease; anything from it, or on_peer_joined(), revives
  // it. kEnded: it is certain that this run has ended. Waits for it end at once in both cases.
  enum class Loss { kUnreachable, kEnded };
  void on_peer_lost(WorkerRun run, Loss loss, TimePoint now);

  // ---- making values: protocol_create.cc ----

  // A handle to a value that is here already.
  //   what    its type and where it was made, for reports
  //   throws  Error kShutdown
  HandleId create_local(std::string_view what);
  // A handle to a value that `owner`, which may be this worker, is to make. The caller sends the
  // request, with the HandleId and `what`, and then reports how it ended, by one of the two below.
  //   throws  Error kShutdown, kDisconnected (names the owner)
  HandleId create(WorkerRun owner, std::string_view what, TimePoint now);
  void creation_done(const HandleId& id, TimePoint now);
  // The request failed, or nobody knows: the owner is told to let go of what may come of it.
  void creation_failed(const HandleId& id, const Error& why, TimePoint now);

  // At the owner: a request to make a value came.
  enum class Creation {
    kRun,        // make it, then call value_set()
    kDuplicate,  // it came before: drop this one
    kGone,       // its creator has given it up: answer with kCancelled, which nobody reads
    kRefused,    // shutting down, or not from a live worker: answer with kShutdown
  };
  Creation on_creation(WorkerRun from, const HandleId& id, std::string_view what, TimePoint now);
  // It is made, or failed to be. Releases it at once when nobody wants it any more.
  void value_set(const RRefId& id, std::optional<Error> failure, TimePoint now);

  // ---- sharing: protocol_fork.cc ----

  // For a reference that is about to travel to `to`. The handle may be dropped meanwhile.
  //   throws  Error: kShutdown, kDisconnected (names `to` or the owner), or what the handle failed
  //           with
  ForkData fork(const HandleId& handle, WorkerRun to, TimePoint now);
  // The message that carried these forks has ended. kArrived: it was answered, or it was an answer
  // itself and is sent. kFailed: it may have arrived, or may yet: they are taken back.
  enum class Carrier { kArrived, kFailed };
  void carrier_ended(WorkerRun to, std::span<const ForkId> forks, Carrier end, TimePoint now);
  // A reference arrived from `from`: returns a handle. When data.fork came before and its handle
  // is still held, it counts once more and must be dropped once more.
  //   throws  Error: kCorrupt, kShutdown, kCancelled (it was taken back), kDisconnected (its owner
  //           or sender is gone), kNotFound (released); the sender learns of it, as by declined()
  HandleId received(WorkerRun from, const ForkData& data, TimePoint now);
  // The same for one that nobody wants: its message could not be read, or came too late.
  void declined(WorkerRun from, const ForkData& data, TimePoint now);
  // A handle is gone.
  void drop(const HandleId& handle, TimePoint now);

  // ---- using: protocol_wait.cc ----

  // Why no operation on this handle can work now, if so: its creation failed, its owner is out of
  // reach (kDisconnected, names it), the value was released. O(1), for every operation to ask
  // first.
  std::optional<Error> failure_of(const HandleId& handle) const;
  bool confirmed(const HandleId& handle) const;
  // Waits until the owners count all these handles. Never for ever: at most until `deadline` or,
  // unless a handle's value is still being made, for options.confirm_timeout.
  WaitId wait_confirmed(std::span<const HandleId> handles, Deadline deadline, TimePoint now);
  // At the owner: waits for a value, for `requester` (this worker too). The error is what the value
  // failed with; or kTimeout, kNotFound (released), kNotOwner, kDisconnected.
  WaitId wait_value(WorkerRun requester, const RRefId& id, Deadline deadline, TimePoint now);
  void cancel_wait(WaitId id, TimePoint now);  // its result will not come

  enum class Value { kNone, kUnborn, kPending, kReady, kFailed };
  Value value(const RRefId& id) const;  // O(1): with kReady, wait_value() is needless

  // ---- the rest: protocol_control.cc, protocol_drain.cc, protocol.cc ----

  // A frame came; the caller has checked that it is from frame.from.
  void on_control(const ControlFrame& frame, TimePoint now);
  void on_timer(TimePoint now);

  // Drops every handle here, refuses new ones, and waits until nothing is pending and no worker in
  // reach holds anything of ours; then, or at the deadline, Outbox::drained comes, every value left
  // is released and every method is refused or ignored. Workers may drain in any order.
  void drain(Deadline deadline, TimePoint now);
  bool drained() const noexcept { return closed_; }
  // The same at once, without asking anybody: as at drain()'s deadline.
  void end(TimePoint now);

  Outbox take();
  // When to call on_timer(): as the latest Outbox::wake_at, for those who take() in many threads.
  Deadline wake_at() const noexcept { return timers_.next(); }
  Counters counters() const;
  std::vector<Leak> holdings() const;  // what drain() would report as left now; O(everything)

 private:
  Peer& peer(WorkerRun run);
  const Peer* find_peer(WorkerRun run) const;
  Peer* hear_from(WorkerRun run, TimePoint now);  // null: not to be listened to
  bool superseded(WorkerRun run) const;
  const std::string& name_of(WorkerRun run) const;
  void mark_dirty(Peer& peer);
  void revive(Peer& peer);
  void lose(Peer& peer, TimePoint now);
  void die(Peer& peer, TimePoint now);
  void give_notice(Peer& peer, TimePoint now);
  void reclaim(Peer& peer);
  void cancel_parked(Peer& peer, const Error& why);

  void check_open(const char* operation) const;
  Creation on_own_creation(const HandleId& id);
  OwnerRecord* find_owned(const RRefId& id);
  OwnerRecord* find_or_expect(const RRefId& id, std::shared_ptr<const std::string> what);
  UserRecord* find_user(const HandleId& handle);
  void hold(Peer& holder, const ForkId& fork, OwnerRecord& record);
  void let_go(Peer& holder, const ForkId& fork);
  void never_born(OwnerRecord& record, const Error& why);
  void settle_owned(OwnerRecord& record);
  void settle_user(UserRecord& record);
  void set_state(UserRecord& record, UserRecord::State state);
  void fail(UserRecord& record, const Error& why);
  void release(OwnerRecord& record);

  uint64_t push(Peer& peer, ControlKind kind, const RRefId& rref, const ForkId& fork);
  void on_fence(const ControlFrame& frame, TimePoint now);
  std::optional<Refusal> process(Peer& from, const ControlItem& item, TimePoint now);
  std::optional<Refusal> process_fork_request(Peer& from, const ControlItem& item);
  std::optional<Refusal> process_recall(Peer& from, const ControlItem& item, TimePoint now);
  void process_creator_delete(Peer& from, const ControlItem& item);
  void settled(Peer& peer, const Link::Settled& done, std::optional<Error> dead);
  void asked(const Link::Settled& done, std::optional<Error> dead);

  bool child_gone(Peer& to, const ForkId& fork, bool accepted);
  void recall(Peer& to, const ForkId& fork, Child& child);
  void accept_from(Peer& from, const RRefId& rref, const ForkId& fork);
  HandleId received_from_self(const ForkData& data);

  void park(std::vector<WaitId>& waits, WaitId id);
  Wait& add_wait(WaitId id, Wait wait, Deadline deadline, TimePoint now);
  void answer(std::vector<WaitId>& waits, const std::optional<Error>& error);
  Wait end_wait(WaitId id);
  Wait finish_wait(WaitId id, std::optional<Error> error);
  void leave_value(const Wait& wait);
  void wait_expired(WaitId id);

  bool quiet() const;
  void drop_everything(TimePoint now);
  void close(TimePoint now);

  const ProtocolOptions options_;
  TimePoint now_{};  // of the last event
  Texts texts_;
  Timers timers_;
  std::unordered_map<WorkerRun, std::unique_ptr<Peer>> peers_;
  std::unordered_map<int32_t, WorkerRun> current_;  // by rank: the run that joined last
  std::vector<Peer*> dirty_;                        // have something to send
  std::unordered_map<RRefId, OwnerRecord> owned_;
  std::unordered_map<ForkId, UserRecord> users_;
  std::unordered_map<WaitId, Wait> waits_;
  uint64_t last_fork_ = 0;
  WaitId last_wait_ = 0;
  size_t unborn_ = 0, pending_users_ = 0, rejected_frames_ = 0;

  bool draining_ = false, closed_ = false;
  TimePoint drain_begun_{};
  Timers::Key drain_timer_{};
  Outbox out_;
};

}  // namespace farspan::rref
