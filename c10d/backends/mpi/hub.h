// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Hub: all of this process's groups on one wire: who takes packets in, waits, and tells of
// failures.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/backends/mpi/mail.h>
#include <farspan/c10d/backends/mpi/room.h>
#include <farspan/c10d/backends/mpi/wire.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist::mpi {

// Whoever waits takes in what comes, for all groups. A thread of the hub's does so while something
// is under way that nobody may be waiting for.
//
// Threading: every method from any thread. Lifetime: that of the process.
class Hub {
 public:
  explicit Hub(MPI_Comm ranks);
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // This process among all ranks of the job.
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Says hello to all ranks of the job, and waits for theirs: the default group of this start.
  //   throws  Error kTimeout (names who is missing), kShutdown (MPI has ended)
  GroupSpec meet(Deadline deadline);

  // What has come for the group already, and all that will.
  std::shared_ptr<Room> open(const GroupSpec& spec);

  // Under the lock: `use(wire)`, for what a collective keeps in its room.
  template <class Use>
  void locked(const Use& use) {
    MutexLock lock(mutex_);
    check_open_locked();
    use(wire_);
  }
  // Takes packets in until no other rank of the group is missing. `is_missing(rank, wire)` is asked
  // under the lock, again and again; it may send, and throw.
  //   throws  Error: see Backend
  using IsMissing = std::function<bool(int rank, Wire& wire)>;
  //   since     when this rank called the collective
  //   have_met  who is missing has called it, at least
  void wait(Room& room, Deadline deadline, TimePoint since, const IsMissing& is_missing,
            bool have_met = true);

  // A collective has ended here: nothing is written to its memory any more.
  void finish(Room& room) noexcept;

  Future<int> send(Room& room, const Message& message, Block data);
  Future<int> recv(Room& room, const Message& message, Block data);
  // Takes packets in until the message is there, or `deadline`. At `own` it ends.
  bool wait(FutureCore& message, Deadline deadline, Deadline own);

  // See Backend::abort() and leave().
  void fail(Room& room, const Error& why, uint64_t since) noexcept;
  void leave(Room& room) noexcept;

  // At the end of the process: until all ranks have come to theirs. Returns who has not by the
  // deadline.
  std::string say_bye(Deadline deadline);
  // A collective, or meet(), has run out of time here.
  bool has_timed_out() const noexcept { return timed_out_; }
  // No call to MPI comes after this. What is under way ends with kShutdown.
  void close() noexcept;

 private:
  bool poll_locked(Endings& endings) FARSPAN_REQUIRES(mutex_);
  void take_locked(Packet packet, Endings& endings) FARSPAN_REQUIRES(mutex_);
  void take_of_room_locked(Room& room, Packet packet, Endings& endings) FARSPAN_REQUIRES(mutex_);
  std::shared_ptr<Room> room_locked(uint64_t id) FARSPAN_REQUIRES(mutex_);
  bool fail_locked(Room& room, const Error& why, uint64_t since, Endings& endings)
      FARSPAN_REQUIRES(mutex_);
  void end_hopeless_locked(Room& room, Endings& endings) FARSPAN_REQUIRES(mutex_);
  void break_locked(const Error& why, Endings& endings) FARSPAN_REQUIRES(mutex_);
  void tell_all_locked(const Room& room, Kind kind, uint64_t number,
                       std::span<const std::byte> content) FARSPAN_REQUIRES(mutex_);
  void expire_locked(Endings& endings) FARSPAN_REQUIRES(mutex_);
  void check_open_locked() const FARSPAN_REQUIRES(mutex_);
  // Says `word` to all ranks of the job, once, and waits for theirs. Returns who is missing.
  std::string exchange(Kind word, uint64_t number, Deadline deadline, Micros longest_pause);

  bool needs_thread_locked() const FARSPAN_REQUIRES(mutex_);
  void call_thread_locked() FARSPAN_REQUIRES(mutex_);
  void loop() noexcept;

  int rank_ = 0, size_ = 0;  // constant
  std::atomic<bool> timed_out_{false};
  mutable Mutex mutex_;
  Wire wire_ FARSPAN_GUARDED_BY(mutex_);
  Mail mail_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> broken_ FARSPAN_GUARDED_BY(mutex_);  // why MPI is called no more
  std::map<uint64_t, std::shared_ptr<Room>> rooms_ FARSPAN_GUARDED_BY(mutex_);
  std::set<uint64_t> left_ FARSPAN_GUARDED_BY(mutex_);  // groups; late packets make no room again
  uint64_t starts_ FARSPAN_GUARDED_BY(mutex_) = 0;      // that have met
  struct Words {                                        // of one kind
    uint64_t said = 0;                                  // by this rank
    std::vector<uint64_t> heard;                        // by rank of the job
  };
  std::map<Kind, Words> words_ FARSPAN_GUARDED_BY(mutex_);
  // By rank of the job, from their first word on: "rank 3 (host:pid)".
  std::vector<std::string> names_ FARSPAN_GUARDED_BY(mutex_);
  CondVar work_;
  bool has_thread_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::mpi
