// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Mutex, MutexLock and CondVar with Clang's thread-safety annotations: fields say which mutex
// guards them, and the `asan` preset fails the build where that is not so.
#pragma once

#include <condition_variable>
#include <mutex>

#include <farspan/c10d/base/time.h>

#if defined(__clang__)
#define FARSPAN_TSA(x) __attribute__((x))
#else
#define FARSPAN_TSA(x)
#endif

#define FARSPAN_CAPABILITY(x) FARSPAN_TSA(capability(x))
#define FARSPAN_GUARDED_BY(x) FARSPAN_TSA(guarded_by(x))
#define FARSPAN_REQUIRES(...) FARSPAN_TSA(requires_capability(__VA_ARGS__))
#define FARSPAN_EXCLUDES(...) FARSPAN_TSA(locks_excluded(__VA_ARGS__))
#define FARSPAN_ACQUIRE(...) FARSPAN_TSA(acquire_capability(__VA_ARGS__))
#define FARSPAN_RELEASE(...) FARSPAN_TSA(release_capability(__VA_ARGS__))
#define FARSPAN_TRY_ACQUIRE(...) FARSPAN_TSA(try_acquire_capability(__VA_ARGS__))
#define FARSPAN_NO_THREAD_SAFETY_ANALYSIS FARSPAN_TSA(no_thread_safety_analysis)

namespace farspan {

class FARSPAN_CAPABILITY("mutex") Mutex {
 public:
  void lock() FARSPAN_ACQUIRE() { mutex_.lock(); }
  void unlock() FARSPAN_RELEASE() { mutex_.unlock(); }
  bool try_lock() FARSPAN_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class FARSPAN_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FARSPAN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() FARSPAN_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// As std::condition_variable, on a Mutex that the caller holds.
class CondVar {
 public:
  void wait(Mutex& mutex) FARSPAN_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when the deadline has passed. May wake early: test the condition in a loop.
  bool wait_until(Mutex& mutex, Deadline deadline) FARSPAN_REQUIRES(mutex) {
    if (deadline.is_never()) return wait(mutex), true;
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline.at()) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() noexcept { cv_.notify_one(); }
  void notify_all() noexcept { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace farspan
