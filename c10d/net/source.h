// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Source: a descriptor that threads take turns to read. Role: the turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <farspan/c10d/net/spin.h>

namespace farspan::net {

class Reactor;
class Source;

// The right to read one source; at most one thread has it. While it is held, the source is disarmed
// in the reactor's epoll, so that no idle thread is woken by what the holder polls for.
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
  // Re-arms the source and gives the turn back; nothing when not held.
  void release() noexcept;
  bool held() const noexcept { return source_ != nullptr; }

 private:
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

  // The descriptor on which the reactor waits for room to write: a duplicate, so that reading and
  // writing are armed independently. -1: never waits.
  virtual int write_descriptor() const noexcept { return -1; }

  // Reactor::remove() was called: there is nothing to wait for any more.
  bool removed() const noexcept { return removed_.load(std::memory_order_acquire); }

  SpinGovernor& spin() noexcept { return spin_; }

 private:
  friend class Role;
  friend class Reactor;
  static constexpr uint32_t kHeld = 1;
  static constexpr uint32_t kFired = 2;  // an event came while the role was held
  std::atomic<uint32_t> turn_{0};
  uint64_t key_ = 0;    // set by Reactor::add
  bool armed_ = false;  // guarded by the role
  std::atomic<bool> removed_{false};
  SpinGovernor spin_;
};

}  // namespace farspan::net
