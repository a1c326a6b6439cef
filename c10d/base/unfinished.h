// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unfinished: work that a thread has taken for itself, and must leave to others before it blocks.
#pragma once

namespace farspan {

// A reading thread takes several frames, events or timers at a time. When what it runs for one of
// them blocks (a continuation that waits for another call, say), the rest would lie behind it, and
// with it perhaps the very thing that is waited for. So the rest is handed over first.
//
// Threading: made, used and destroyed by one thread, on its stack, innermost first.
class Unfinished {
 public:
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Called by the thread when it is about to block below: gives everything that is left away.
  static void hand_over_all() noexcept;

 protected:
  Unfinished() noexcept;
  ~Unfinished();

 private:
  // May be called again later, with nothing left.
  virtual void hand_over() noexcept = 0;

  Unfinished* const outer_;
};

}  // namespace farspan
