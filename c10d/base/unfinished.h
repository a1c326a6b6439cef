// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unfinished: work that a thread has taken for itself, and must leave to others before it blocks,
// and soon when it computes.
#pragma once

namespace farspan {

// A reading thread takes several frames, events or timers at a time. When what it runs for one of
// them blocks (a continuation that waits for another call, say), the rest would lie behind it, and
// with it perhaps the very thing that is waited for. So the rest is handed over first. When it does
// not block but takes long, others come for the rest: see Lent.
//
// Threading: made, used and destroyed by one thread, on its stack, innermost first. hand_over() is
//            called by that thread or, inside a Lent, by another one, under a lock.
class Unfinished {
 public:
  class Lent;

  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Called by the thread when it is about to block below: gives everything that is left away.
  static void hand_over_all() noexcept;
  // Gives away what the threads of this process have lent.
  static void fetch_lent() noexcept;

 protected:
  Unfinished() noexcept;
  ~Unfinished();

 private:
  // May be called again later, with nothing left. Runs nothing of a user's.
  virtual void hand_over() noexcept = 0;

  Unfinished* const outer_;
};

// While one exists, other threads may come for all that the calling thread has taken: it is about
// to run something that may take long, and touches none of its Unfinished in it.
//
// Threading: made and destroyed by the same thread, on its stack.
class Unfinished::Lent {
 public:
  Lent() noexcept;
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  // Whether there is something that was not lent before.
  explicit operator bool() const noexcept { return lends_; }

 private:
  friend class Unfinished;
  Unfinished* const top_;
  Unfinished* const outer_top_;
  const bool lends_;
  Lent* previous_ = nullptr;  // of those of all threads
  Lent* next_ = nullptr;
};

}  // namespace farspan
