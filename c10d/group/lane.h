// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Lane: the collectives of one group, one at a time, in the order in which they were called.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist {

// A call that does not wait runs on a thread of the lane's, which is there only while there is
// work; one that waits runs on the caller's thread, and so does what is before it in the lane as
// soon as somebody waits: no thread is woken for what the caller can do itself. But for calls that
// may take longer than his own: he leaves those to the lane's thread, and his own ends in time,
// whether its turn has come or not.
//
// Threading: every method from any thread. Lifetime: shared by its group, its tasks and its thread;
//            the group calls stop().
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // What runs in its turn. Its value is a rank, or -1.
  class Task : public detail::FutureState<int> {
   public:
    Task(std::shared_ptr<Lane> lane, Deadline deadline)
        : lane_(std::move(lane)), deadline_(deadline) {}

    virtual void run(uint64_t sequence) noexcept = 0;
    // After run(), when others have the turn already: completes the future, whose callbacks may
    // call the group again.
    virtual void complete() noexcept = 0;
    // In place of both: the lane has been stopped.
    virtual void reject() noexcept = 0;
    // In place of both: its time was over before its turn came.
    virtual void expire(uint64_t sequence) noexcept = 0;

    Deadline deadline() const noexcept { return deadline_; }

   protected:
    bool block(Deadline deadline) override;

   private:
    friend class Lane;
    const std::shared_ptr<Lane> lane_;
    const Deadline deadline_;
    uint64_t sequence_ = 0;
  };

  Lane() = default;
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The turn, for the calling thread; 0 when others are before it, else the call's number, from 1.
  uint64_t try_take();
  void release();

  //   here  the calling thread runs it when its turn has come already, and needs no thread of the
  //         lane's for it
  void post(std::shared_ptr<Task> task, bool here = false);

  // Rejects what has not begun, and all that comes, and waits for what runs on the lane's thread.
  void stop();

  // Calls so far.
  uint64_t count() const;

 private:
  void loop();
  void help(Task& task);
  bool withdraw(const Task& task);
  void work_off_locked(const Task* until) FARSPAN_REQUIRES(mutex_);
  bool may_take_next_locked(const Task* until) const FARSPAN_REQUIRES(mutex_);
  void call_thread_locked() FARSPAN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar work_;
  std::deque<std::shared_ptr<Task>> queue_ FARSPAN_GUARDED_BY(mutex_);
  uint64_t count_ FARSPAN_GUARDED_BY(mutex_) = 0;
  bool taken_ FARSPAN_GUARDED_BY(mutex_) = false;  // somebody has the turn
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool has_thread_ FARSPAN_GUARDED_BY(mutex_) = false;  // thread_ runs, and is not about to end
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist
