// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ProcessGroup: some ranks of the job that act together. The operations on it are free functions:
// collectives.h, point_to_point.h, values.h.
// Source: PyTorch's torch.distributed, whose names and meanings these are; where we differ:
// c10d/group/README.md.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/made_here.h>
#include <farspan/c10d/group/backend.h>
#include <farspan/c10d/group/device_place.h>
#include <farspan/c10d/group/history.h>
#include <farspan/c10d/group/lane.h>

namespace farspan::dist {

class ProcessGroup;
using Group = std::shared_ptr<ProcessGroup>;

inline constexpr Millis kDefaultGroupTimeout{1'800'000};  // half an hour, as PyTorch's

// What a rank knows of the monitored barriers of a group.
struct MonitoredBarriers {
  std::atomic<int64_t> called{0};         // on this rank
  std::atomic<int64_t> kept_question{0};  // rank 0 asks for that one, which is to be called yet
};

// Ranks of operations count in the default group, as in PyTorch, unless said otherwise.
//
// Once a collective has failed for another reason than its arguments, the group is of no use, and
// each later one says so; ranks that want to go on can make a new_group().
//
// Threading: every method from any thread. Calls of one group from several threads need an order
//            of their own, since it must be the same on every rank; other groups do not wait.
// Lifetime:  shared by its users and by what is under way on it; the last one shuts it down.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // `backend` is null on a process that is not one of the ranks.
  ProcessGroup(GroupSpec spec, int own_global_rank, std::shared_ptr<Backend> backend,
               Millis timeout);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  const std::string& name() const noexcept { return spec_.name; }
  // "the default group", "group 1 of ranks 0, 2": as errors call it.
  const std::string& label() const noexcept { return spec_.label; }
  std::string_view backend_name() const noexcept;

  // This process in the group, or -1; how many there are; who they are in the default group.
  int rank() const noexcept { return spec_.rank; }
  int size() const noexcept { return spec_.size(); }
  const std::vector<int>& ranks() const noexcept { return spec_.ranks; }

  // From a rank in the default group to one in this.
  //   throws  Error kInvalidArgument: it is not in this group
  int group_rank(int global_rank) const;
  int global_rank(int group_rank) const;

  // Of each operation that does not name its own; kNoTimeout waits for ever.
  Millis timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Millis timeout) noexcept { timeout_ = timeout; }

  // This process in the default group.
  int own_global_rank() const noexcept { return own_rank_; }

  // Collectives called so far, on this rank.
  uint64_t sequence() const { return lane_->count(); }

  // Leaves the group: what is under way here ends with kShutdown, and so does all that is called
  // later. Waits for what runs just now to end; for what devices have been given, half a minute.
  void shutdown() noexcept;
  // Ends what is under way, here and on the other ranks, with kCancelled, or with why the group has
  // failed before. Never blocks.
  void abort(const std::string& why = "abort() was called") noexcept;
  // Why the group is of no use, if it is.
  std::optional<Error> failure() const;

  // The last operations, the oldest first; as text, one line each.
  std::vector<OperationRecord> history() const { return history_.records(); }
  std::string dump() const;

  // For the operations' implementations.
  Backend& backend();
  const std::shared_ptr<Lane>& lane() const noexcept { return lane_; }
  History& records() noexcept { return history_; }
  Deadline deadline(std::optional<Millis> timeout, TimePoint from) const noexcept;
  // How often this process has made a group of these ranks out of this one, counting this time.
  uint64_t count_groups_of(const std::vector<int>& ranks);
  // The number of a message that this rank begins to send or to receive, from 1.
  uint64_t count_message() noexcept { return ++messages_; }
  MonitoredBarriers& monitored_barriers() noexcept { return monitored_barriers_; }
  // Of a device, by its number among those that the backend works on; made when this is first
  // called.
  std::shared_ptr<const DevicePlace> place(
      int device, const std::function<std::shared_ptr<const DevicePlace>()>& make);
  // Throws when the group has failed already: for what is called now.
  void check_usable(const Signature& signature) const;
  // The same for a collective that was called before, with its sequence: those before the one that
  // has failed go on, or the other ranks would wait for them.
  void check_turn(const Signature& signature) const;
  // What a call ends with whose time is over before its turn has come.
  //   record  its id in records()
  Error missed_turn(uint64_t record) const;
  // Remembers the first failure, and adds to it which operation on which group it was.
  Error fail(Error error, const Signature& signature, Clock::duration elapsed) noexcept;

 private:
  void warn_of_unfinished() const;
  // The failure of the earliest collective counts.
  void note_failure_locked(const Error& why, uint64_t since) FARSPAN_REQUIRES(mutex_);

  const GroupSpec spec_;
  const int own_rank_;
  const MadeHere made_;
  std::shared_ptr<Backend> backend_;  // constant
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  std::atomic<Millis> timeout_;
  History history_;

  std::atomic<uint64_t> messages_{0};
  MonitoredBarriers monitored_barriers_;
  std::atomic<bool> failed_{false};  // failure_ is set
  mutable Mutex mutex_;
  std::optional<Error> failure_ FARSPAN_GUARDED_BY(mutex_);
  uint64_t failed_since_ FARSPAN_GUARDED_BY(mutex_) = 0;  // the first collective that ends with it
  std::map<std::vector<int>, uint64_t> groups_made_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const DevicePlace>> places_ FARSPAN_GUARDED_BY(mutex_);
};

// The group of all ranks, that of init_process_group() or of the calling thread's CurrentGroup.
//   throws  Error kInvalidArgument: there is none
Group default_group();
// `group`, or the default group where it is null.
//   operation  which errors name
Group group_or_default(const Group& group, std::string_view operation);
bool is_initialized() noexcept;
// For init_process_group(): null takes it away. Returns the one before.
Group set_default_group(Group group);

// Another default group for one thread: for tests, and programs with several ranks in a process.
class CurrentGroup {
 public:
  explicit CurrentGroup(Group group);
  ~CurrentGroup();
  CurrentGroup(const CurrentGroup&) = delete;
  CurrentGroup& operator=(const CurrentGroup&) = delete;

 private:
  const Group before_;
};

// This process's rank in the group, or -1; how many it has. Null: the default group.
int get_rank(const Group& group = nullptr);
int get_world_size(const Group& group = nullptr);

// A group of some ranks of the default group, in this order. Only they need call it, each in the
// same order; on others it gives a group of which they are no members. Costs no message; the first
// operation connects.
//   timeout  of its operations; absent: that of the default group
//   throws   Error kInvalidArgument: none, out of range, twice, or there is no default group
Group new_group(const std::vector<int>& ranks, std::optional<Millis> timeout = std::nullopt);
// The same out of `parent`'s ranks, counted in the default group.
//   label  what errors call it; empty: "group 1 of ranks 0, 2"
Group new_group_of(const Group& parent, const std::vector<int>& ranks,
                   std::optional<Millis> timeout = std::nullopt, const std::string& label = "");

}  // namespace farspan::dist
