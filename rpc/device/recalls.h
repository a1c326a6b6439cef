// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Recalls: device memory that was lent on a line which has ended. Who has it may be copying it
// still, so it stays as it is until he says that he does not, or his process has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan {

class DeviceRoom;

// Threading: every method from any thread.
// Lifetime:  the room outlives it.
class Recalls {
 public:
  explicit Recalls(DeviceRoom& room) : room_(room) {}
  Recalls(const Recalls&) = delete;
  Recalls& operator=(const Recalls&) = delete;

  // The line to that worker on which this export was lent has ended: it is taken (Exports::taken)
  // when the worker does not copy it any more. Asks it now, and then again and again.
  void keep(int peer, uint64_t lending) noexcept;
  // That worker has said goodbye. It is not asked; what it had is taken after kAfterGoodbye.
  void has_left(int peer) noexcept;
  static constexpr std::chrono::seconds kAfterGoodbye{5};

 private:
  class Answer;
  // To one worker.
  struct Lent {
    std::set<uint64_t> lendings;
    bool is_asked = false;  // and has not answered yet
    bool is_spoken_of = false;
  };

  void look_at(TimePoint at);
  void look();
  bool is_over(int peer, TimePoint now) const FARSPAN_REQUIRES(mutex_);
  void ask(int peer, const std::vector<uint64_t>& lendings);
  // It has answered, or cannot be asked now: all but these are free.
  void end_asking(int peer, const std::vector<uint64_t>& asked,
                  const std::vector<uint64_t>& in_use) noexcept;
  void take(int peer, const std::vector<uint64_t>& lendings) noexcept;

  DeviceRoom& room_;
  mutable Mutex mutex_;
  std::map<int, Lent> lent_ FARSPAN_GUARDED_BY(mutex_);          // by the worker that has it
  std::map<int, TimePoint> left_at_ FARSPAN_GUARDED_BY(mutex_);  // those that have said goodbye
  agent::TimerId timer_ FARSPAN_GUARDED_BY(mutex_) = 0;          // of the next look
  TimePoint next_look_ FARSPAN_GUARDED_BY(mutex_){};
  std::chrono::milliseconds pause_ FARSPAN_GUARDED_BY(mutex_){0};
};

}  // namespace farspan
