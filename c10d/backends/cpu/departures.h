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
#include <farspan/c10d/store/store.h>

namespace farspan::dist::cpu {

// Threading: every method from any thread; answers come in a thread of its own.
class Departures {
 public:
  using Answer = std::function<void(bool has_left)>;

  Departures(const std::shared_ptr<Store>& store, int rank);
  ~Departures() { stop(); }

  // This rank leaves. Blocks for half a second at most, and lets go of the store: it may live in
  // this process.
  void say() noexcept;
  // Whether a rank, which is gone, had said so; soon. No: it has not, or nobody can tell any more.
  // Not after stop(), which waits for an answer that is being given.
  void ask(int rank, Answer answer);
  void stop() noexcept;

 private:
  struct Question {
    int rank;
    Answer answer;
  };
  bool has_left(int rank) noexcept;
  void run() noexcept;

  const int rank_;
  Mutex mutex_;
  CondVar asked_;
  std::shared_ptr<Store> store_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<Question> questions_ FARSPAN_GUARDED_BY(mutex_);
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);  // from the first question on
};

}  // namespace farspan::dist::cpu
