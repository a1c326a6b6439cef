// Two words in shared memory, by which two processes that poll hand each other the turn.
#pragma once

#include <atomic>

#include "bench/peers/child.h"

namespace bench {

class SharedWords {
 public:
  // The parent: gives the turn to the child and has it back.
  void there_and_back() {
    (*words_).ping = ++turn_;
    while ((*words_).pong != turn_) continue;
  }
  // The child: for each turn it does `work()`; never returns.
  template <class Work>
  [[noreturn]] void serve(const Work& work) {
    for (int turn = 1;; ++turn) {
      while ((*words_).ping != turn) continue;
      work();
      (*words_).pong = turn;
    }
  }

 private:
  struct Words {
    alignas(64) std::atomic<int> ping{0};
    alignas(64) std::atomic<int> pong{0};
  };
  const Shared<Words> words_;
  int turn_ = 0;
};

}  // namespace bench
