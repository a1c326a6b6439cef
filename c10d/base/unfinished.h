// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unfinished: work that a thread has taken for itself, and leaves to others before it blocks, or
// when it computes for long.
#pragma once

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan {

class Lending;

// A reading thread takes several frames, events or timers at a time. When what it runs for one of
// them blocks (a continuation that waits for another call, say), the rest would lie behind it, and
// with it perhaps the very thing that is waited for. So the rest is handed over first. When it does
// not block but takes long, others come for the rest: see Lent.
//
// Threading: made, used and destroyed by one thread, on its stack, innermost first. hand_over() is
//            called by that thread or, inside a Lent, by another one.
class Unfinished {
 public:
  class Lent;

  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Called by the thread when it is about to block below: gives everything that is left away.
  static void hand_over_all() noexcept;

 protected:
  // Others come for it from where `lending` is looked after.
  explicit Unfinished(Lending& lending) noexcept;
  virtual ~Unfinished();

  // Whether it is inside a Lent of this thread's now: others may be coming for it.
  bool is_lent() const noexcept;

 private:
  friend class Lending;

  // Under the lending's lock. May be called again later, with nothing left. Runs, and destroys,
  // nothing of a user's.
  virtual void hand_over() noexcept = 0;
  // False: only threads that would otherwise be idle should come for it.
  virtual bool urgent() const noexcept { return true; }
  // Whether there is something to do, but to say that all has been done.
  virtual bool has_more() const noexcept { return true; }

  static bool any_has_more(const Unfinished* inner, const Unfinished* outer) noexcept;

  Lending& lending_;
  Unfinished* const outer_;
  // While it is lent, guarded by the lending's lock.
  TimePoint lent_at_;
  Unfinished* previous_ = nullptr;
  Unfinished* next_ = nullptr;
};

// While one exists, others may come for all that the calling thread has taken: it is about to run
// something that may take long, and that touches none of it.
//
// Threading: made and destroyed by the same thread, on its stack.
class Unfinished::Lent {
 public:
  // `needed`: also where nothing has more to do, but to tell of its end, which has to wait for what
  // takes long as a rule.
  explicit Lent(bool needed = true) noexcept;
  ~Lent();
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  Unfinished* const outer_top_;  // it and what is outside of it have been lent before
  Unfinished* const top_;        // the same when nothing is lent
};

// What threads have lent to those who look after one place.
//
// Threading: every method from any thread.
class Lending {
 public:
  // What takes less is not worth the trouble.
  static constexpr std::chrono::milliseconds kFetchAfter{1};
  // How long what is not urgent may lie beside threads that have become idle.
  static constexpr std::chrono::milliseconds kLookEvery{10};

  virtual ~Lending() = default;
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

  // Gives away what has been lent for long enough.
  //   idle     there are threads with nothing better to do: also what is not urgent
  //   returns  when to look again; max: nothing is lent
  TimePoint fetch(bool idle) noexcept;

 protected:
  Lending() = default;

 private:
  friend class Unfinished;
  friend class Unfinished::Lent;

  // Somebody is to call fetch() then.
  virtual void look_at(TimePoint at) noexcept = 0;

  void lend(Unfinished& work, TimePoint now) noexcept;
  void take_back(Unfinished& work) noexcept;

  Mutex mutex_;
  Unfinished* first_ FARSPAN_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace farspan
