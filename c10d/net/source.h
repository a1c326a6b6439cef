// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Source: a descriptor that threads take turns to read. Role: the turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <farspan/c10d/base/future_core.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/spin.h>

namespace farspan::net {

class Reactor;
class Source;

// A thread that sleeps until a source brings something, while another one reads it.
class Follower : public Sleeper {
 public:
  // Whether it is about to wake up anyhow.
  virtual bool is_woken() const noexcept = 0;

 protected:
  ~Follower() = default;
};

// The right to read one source; at most one thread has it. While it is held, the source is disarmed
// in the reactor's epoll, so that no idle thread is woken by what the holder polls for.
//
// A holder that expects to be back in no time gives the turn back on a *lease*: the source stays
// disarmed, which saves two system calls. If nobody has come back after a millisecond, the reactor
// arms it again; when there was something to read by then, leases are off for a while.
//
// Threading: a Role belongs to the thread that took it.
class Role {
 public:
  Role() = default;
  ~Role() { release(); }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;

  // False when another thread has it. `fired`: the caller got it from epoll, which has disarmed it.
  bool take(Reactor& reactor, Source& source, bool fired) noexcept;
  // The same for the reactor, which looks after a lease: also false when the source is armed.
  bool take_disarmed(Reactor& reactor, Source& source) noexcept;
  // Gives the turn back, and re-arms the source unless on a lease; nothing when not held.
  void release() noexcept;
  bool held() const noexcept { return source_ != nullptr; }
  // Whether the next release() may leave a lease.
  void may_lease(bool may) noexcept { may_lease_ = may; }
  bool leases() const noexcept { return may_lease_; }
  // The holder calls the source's hand_over() when it goes for good, so that followers are no
  // reason against a lease.
  void hands_over() noexcept { hands_over_ = true; }

 private:
  bool release_on_lease(Source& source) noexcept;

  bool may_lease_ = false, hands_over_ = false;
  Reactor* reactor_ = nullptr;
  Source* source_ = nullptr;
};

// What a reactor reads: a connection, a listener's loop, an eventfd.
//
// Threading: pump() is called by the holder of the role; flush() by any thread.
// Lifetime:  shared by the reactor (from add() to remove()) and its maker.
class Source : public std::enable_shared_from_this<Source> {
 public:
  virtual ~Source() = default;

  virtual int descriptor() const noexcept = 0;

  // Reads what is there without blocking. Releases `role` before it runs anything that may take
  // long or block. Returns false, and keeps the role, when there was nothing.
  virtual bool pump(Role& role) noexcept = 0;

  // Writes on what could not be written before, without blocking; true when some is left.
  virtual bool flush() noexcept { return false; }
  // Whether a flush() has ended what others wait for, and nobody has told them. To tell may run
  // their code: not while a role is held.
  virtual bool has_news() const noexcept { return false; }
  virtual void tell_news() noexcept {}

  // The descriptor on which the reactor waits for room to write: a duplicate, so that reading and
  // writing are armed independently. -1: never waits.
  virtual int write_descriptor() const noexcept { return -1; }

  // Bytes that have passed in either direction: while they do, it pays to poll on.
  virtual uint64_t passed_bytes() const noexcept { return 0; }

  // Before a thread sleeps on descriptor() or write_descriptor(): false when there is something to
  // read, or room, by now. A source whose other end looks before it signals learns of the sleeper.
  virtual bool expect_input() noexcept { return true; }
  virtual bool expect_room() noexcept { return true; }
  // No thread sleeps on descriptor() any more.
  virtual void expect_no_input() noexcept {}

  // Reactor::remove() was called: there is nothing to wait for any more.
  bool removed() const noexcept { return removed_.load(std::memory_order_acquire); }

  // Until a reactor's thread reads the next message, and until a thread that waits has its answer.
  SpinGovernor& reads() noexcept { return reads_; }
  SpinGovernor& answers() noexcept { return answers_; }

  // Threads that sleep until this source brings something while another one reads it. When the
  // reader leaves, hand_over() wakes one of them to take its place: none while somebody reads, who
  // calls it later.
  void follow(Follower& follower);
  void unfollow(Follower& follower);
  void hand_over() noexcept;

  // How often a thread of this process has asked for something that it brings.
  void count_question() noexcept { questions_.fetch_add(1, std::memory_order_relaxed); }

  // Whether nobody had used it for a while when this was last expected of it; tells once.
  bool was_idle() noexcept {
    return was_idle_.load(std::memory_order_relaxed) &&
           was_idle_.exchange(false, std::memory_order_relaxed);
  }

 private:
  friend class Role;
  friend class Reactor;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kFired = 2;  // an event came while the role was held
  std::atomic<uint32_t> turn_{0};
  uint64_t key_ = 0;                      // set by Reactor::add
  std::atomic<bool> armed_{false};        // written by the holder of the role
  std::atomic<bool> was_idle_{false};     // before the call whose answer is expected
  std::atomic<Clock::rep> last_wait_{0};  // when one has ended
  std::atomic<uint32_t> uses_{0};         // releases on a lease
  uint32_t uses_seen_ = 0;                // by the reactor, when it last looked
  std::atomic<bool> leased_{false};       // the reactor will look after it
  std::atomic<uint32_t> no_leases_{0};    // releases that must arm, after a lease did harm
  std::atomic<int> follower_count_{0};
  Mutex followers_mutex_;
  std::vector<Follower*> followers_ FARSPAN_GUARDED_BY(followers_mutex_);
  std::atomic<uint64_t> questions_{0};  // only ever more
  std::atomic<int> hot_for_{0};         // threads that poll it before they sleep
  std::atomic<bool> removed_{false};
  SpinGovernor reads_, answers_;
};

}  // namespace farspan::net
