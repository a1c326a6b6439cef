// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Ring: bytes in one direction between two processes that share memory. No system calls: who finds
// nothing to do leaves a mark, and the other side says that the mark wants a signal.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace farspan::transport {

// As it lies in shared memory, zeroes at first. Each line is touched by one side, as a rule, but
// for the look of the other one that polls.
struct RingState {
  alignas(64) std::atomic<uint64_t> written;  // bytes ever written
  alignas(64) std::atomic<uint64_t> read;     // bytes ever read
  alignas(64) std::atomic<uint32_t> reader_waits;
  alignas(64) std::atomic<uint32_t> writer_waits;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// What the other side says is checked: a ring that it has spoilt is broken, and moves nothing more.
//
// Threading: write() by one thread at a time; all others by any.
// Lifetime:  state and bytes outlive it.
class RingWriter {
 public:
  RingWriter(RingState& state, std::byte* bytes, size_t capacity) noexcept
      : state_(state), bytes_(bytes), capacity_(capacity) {}

  // Bytes moved: what there is room for.
  size_t write(const iovec* pieces, int count) noexcept;
  bool has_room() const noexcept;
  bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }

  // After a write: true when the reader waits for a signal. Once for each time it has said so.
  bool is_reader_to_be_woken() noexcept;
  // False when there is room, now that the mark is there; else the reader will see it.
  bool wait_for_room() noexcept;

 private:
  size_t room(uint64_t written) noexcept;
  void put(uint64_t at, const std::byte* from, size_t bytes) noexcept;

  RingState& state_;
  std::byte* const bytes_;
  const size_t capacity_;  // a power of two
  uint64_t read_seen_ = 0;
  std::atomic<bool> broken_{false};
};

// Threading: read() by one thread at a time; all others by any. Lifetime: as RingWriter's.
class RingReader {
 public:
  RingReader(RingState& state, const std::byte* bytes, size_t capacity) noexcept
      : state_(state), bytes_(bytes), capacity_(capacity) {}

  size_t read(const iovec* places, int count) noexcept;
  bool has_bytes() const noexcept;
  bool is_broken() const noexcept { return broken_.load(std::memory_order_relaxed); }

  // After a read: true when the writer waits for a signal, and much of the ring is free.
  bool is_writer_to_be_woken() noexcept;
  // False when there are bytes, now that the mark is there; else the writer will see it.
  bool wait_for_bytes() noexcept;
  void wait_no_more() noexcept { state_.reader_waits.exchange(0, std::memory_order_acq_rel); }

 private:
  void get(uint64_t at, std::byte* to, size_t bytes) const noexcept;

  RingState& state_;
  const std::byte* const bytes_;
  const size_t capacity_;
  std::atomic<bool> broken_{false};
};

}  // namespace farspan::transport
