// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Recalls: device memory that was lent on a line which has ended. Who has it may be copying it
// still, so it stays as it is until he says that he does not, or his process is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <farspan/c10d/base/mutex.h>
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
  // when the worker does not copy it any more. Asks it, and again until it has answered.
  void keep(int peer, uint64_t lending) noexcept;

 private:
  class Answer;
  // Of one worker.
  struct Lent {
    std::set<uint64_t> lendings;
    bool is_asked = false;  // and has not answered yet
    bool is_spoken_of = false;
  };

  void look_later(std::chrono::milliseconds after);
  void look();
  void ask(int peer, const std::vector<uint64_t>& lendings);
  // These are free; who was asked may be asked again.
  void take(int peer, std::span<const uint64_t> lendings) noexcept;

  DeviceRoom& room_;
  Mutex mutex_;
  std::map<int, Lent> lent_ FARSPAN_GUARDED_BY(mutex_);  // by the worker that has it
  bool will_look_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::chrono::milliseconds pause_ FARSPAN_GUARDED_BY(mutex_){0};
};

}  // namespace farspan
