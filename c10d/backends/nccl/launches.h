// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Launches: the collectives of one group that its device has been given, and whoever looks whether
// it does them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <farspan/c10d/backends/nccl/communicator.h>
#include <farspan/c10d/backends/nccl/watch.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/signature.h>

namespace farspan::dist::nccl {

// They end in their order: when the device has done them and all ranks have agreed on them; or in
// error, and with them the communicator. A thread looks at them, and so does whoever waits for one.
//
// Threading: every method from any thread; begin() and given() by one at a time. Futures complete
// on whichever thread looks, without a lock.
class Launches : public std::enable_shared_from_this<Launches> {
 public:
  struct Options {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<device::Devices> devices;
    std::string name;  // of this rank, in errors
    // Called once, when one takes long; on the thread that looks.
    std::function<void()> on_late;
    // Called when they have failed, those from a sequence on.
    std::function<void(const Error& why, uint64_t since)> on_failed;
  };
  static std::shared_ptr<Launches> make(Options options);
  ~Launches();
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  // One that the device is about to be given: that may take until the other ranks call it.
  //   agreed  all ranks have called the same
  //   throws  why those before have failed
  Future<int> begin(const Signature& signature, Deadline deadline, Future<int> agreed);
  // It is what the communicator's stream has been given last.
  //   throws  as begin()
  void given();
  // Why they have failed, if they have.
  std::optional<Error> failure() const;

  // Waits until all that have begun have ended, or `deadline` has passed.
  void finish(Deadline deadline);
  // Those from `since` on end with `why`; the others with it at `latest`, if they have not ended.
  void fail(const Error& why, uint64_t since, Deadline latest);
  // A rank is gone: those that the device has not done soon end with `why`.
  void lose_rank(const Error& why);
  // All end with `why`; the communicator, too. To be called before it is let go of: joins the
  // thread.
  //   returns  the sequence of the first that had not ended, if there was one
  std::optional<uint64_t> stop(const Error& why) noexcept;

  // For those who wait.
  void look();
  bool wait_and_look();

 private:
  using State = Watched<Launches>;
  struct Launch {
    Signature signature;
    Deadline deadline;
    TimePoint called;
    Future<int> agreed;
    std::shared_ptr<State> state;
    device::Event event = nullptr;  // null: not given yet
  };
  struct Failure {
    Error why;
    uint64_t since;
    Deadline latest;
  };
  struct Ended {
    std::shared_ptr<State> state;
    std::optional<Error> why;
  };

  explicit Launches(Options options) : options_(std::move(options)) {}
  bool end_first();
  std::optional<Launch> first_to_look_at() const;
  void see_communicator();
  void see_launches_locked() FARSPAN_REQUIRES(mutex_);
  void end_in_error_locked(std::vector<Ended>& ended) FARSPAN_REQUIRES(mutex_);
  void end_all_locked(const Error& why, std::vector<Ended>& ended) FARSPAN_REQUIRES(mutex_);
  void note_locked(const Failure& failure) FARSPAN_REQUIRES(mutex_);
  bool is_late_locked() const FARSPAN_REQUIRES(mutex_);
  Error late_error_locked(const Launch& launch) const FARSPAN_REQUIRES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Launch> under_way_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<device::Event> free_events_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<device::Event> lost_events_ FARSPAN_GUARDED_BY(mutex_);  // may not have come
  // The first: the communicator is aborted when those before it have ended.
  std::optional<Failure> failure_ FARSPAN_GUARDED_BY(mutex_);
  bool is_aborted_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool has_told_late_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool has_told_failure_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::nccl
