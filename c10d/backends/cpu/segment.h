// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Segment: the shared memory through which the ranks of one group on one host exchange data: for
// each a seat with its flags, and room for what it hands on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include <farspan/c10d/backends/messages/told_error.h>
#include <farspan/c10d/group/signature.h>
#include <farspan/c10d/net/shared_memory.h>

namespace farspan::dist::cpu {

// A number that only its owner raises, and the others wait for.
struct alignas(64) Flag {
  std::atomic<uint64_t> value{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class Absence : uint32_t { kNone = 0, kGone = 1, kLeft = 2 };

// What one rank shows the others. Lies in shared memory, which begins as zeroes.
struct alignas(64) SharedSeat {
  enum Stage { kEntered, kPut, kReduced, kTaken, kStages };
  std::array<Flag, kStages> flags;
  alignas(64) std::atomic<uint32_t> asleep{0};     // a futex: 1 while the rank sleeps
  alignas(64) std::array<Signature, 2> signature;  // of the call entered last, and before
  std::array<uint64_t, 2> chunks = {};             // of those calls
  std::atomic<uint32_t> absence{0};                // an Absence; told by whoever has noticed
  // Of the failures that this rank has told of; each is written once, before the segment's `failed`
  // says so.
  static constexpr size_t kTold = 3;
  alignas(64) std::array<messages::ToldError, kTold> why;
};

struct alignas(64) SharedHeader {
  std::atomic<uint64_t> failed{0};  // a Failed; 0: nothing has
};

// The failure that counts: that of the earliest call, and of several the first.
struct Failed {
  uint64_t since = 0;  // the call, which ends with it as all later ones do
  int rank = -1;       // who told of it
  size_t told = 0;     // which of its `why`

  uint64_t word() const noexcept {
    return since << 16 | static_cast<uint64_t>(rank + 1) << 2 | told;
  }
  static Failed of(uint64_t word) noexcept {
    return {word >> 16, static_cast<int>(word >> 2 & 0x3fff) - 1, word & 3};
  }
};

// Handed over together with a call. Holds all_to_all's table, too: so there are at most 512 ranks.
inline constexpr size_t kSmallBytes = size_t{8} << 10;
inline constexpr int kMostRanks = kSmallBytes / (2 * sizeof(uint64_t));
inline constexpr int kDepth = 4;  // chunks that a rank may be ahead
// One place in a ring, whatever the number of ranks, or memory would grow with its square. Half of
// it costs up to a fifth more time, for ranks meet twice as often; more does not help.
inline constexpr size_t kRoomBytes = size_t{256} << 10;

// Threading: see the atomics; seats and rooms are synchronised by the flags.
class Segment {
 public:
  enum Ring { kOwn, kResult, kRings };

  static size_t bytes_for(int ranks);

  Segment(net::SharedMemory memory, int ranks);

  SharedHeader& header() const noexcept;
  SharedSeat& seat(int rank) const noexcept;
  // kSmallBytes; the one of two that belongs to a call.
  std::byte* small(int rank, uint64_t epoch) const noexcept;
  // kRoomBytes; chunks take turns.
  std::byte* room(int rank, Ring ring, uint64_t chunk) const noexcept;

  int ranks() const noexcept { return ranks_; }

 private:
  net::SharedMemory memory_;
  int ranks_;
};

}  // namespace farspan::dist::cpu
