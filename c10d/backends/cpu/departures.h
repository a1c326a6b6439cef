// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Departures: a word in the store from each process that leaves the job, for those to whom it had
// no line by which to say so.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist::cpu {

// Threading: every method from any thread; answers come in a thread of its own.
// Lifetime:  the store, which may live in this process, is there until stop().
class Departures {
 public:
  using Answer = std::function<void(bool has_left)>;

  Departures(const std::shared_ptr<Store>& store, int rank);
  ~Departures() { stop(); }

  // This rank leaves in an orderly way: stop() says so.
  void announce() noexcept;
  // Whether a rank, which is gone, had said so; soon. No: it has not, or nobody can tell any more.
  // Not after stop(), which waits for an answer that is being given.
  void ask(int rank, Answer answer);
  // Blocks for half a second at most.
  void stop() noexcept;

 private:
  struct Question {
    int rank;
    Answer answer;
  };
  bool has_left(int rank) noexcept;
  void run() noexcept;

  const int rank_;
  // Of the thread while there is one; of stop() behind it.
  std::shared_ptr<Store> store_;
  TimePoint asked_in_vain_until_{};
  Mutex mutex_;
  CondVar asked_;
  std::vector<Question> questions_ FARSPAN_GUARDED_BY(mutex_);
  bool announced_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);  // from the first question on
};

}  // namespace farspan::dist::cpu
