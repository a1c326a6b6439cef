// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Packet: what travels from rank to rank: a header, and bytes behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace farspan::dist::mpi {

enum class Kind : uint8_t {
  kNone = 0,
  kHello = 1,    // a start of the backend; number: which; its process's name follows
  kBye = 2,      // the process ends
  kEnter = 3,    // a collective: its Signature, the table of an all_to_all, and bytes that are few
  kData = 4,     // of a collective
  kReady = 5,    // number: slices that have been reduced, so that two more than these may come
  kFailure = 6,  // the group is of no use, from the collective `number` on: a ToldError
  kLeft = 7,     // the sender has left the group
  kMessage = 8,  // as a whole
  kOffer = 9,    // a message that waits for its receive; number: the sender's for it
  kAccept = 10,  // number: of the offer
  kPart = 11,    // of an accepted message
  kWithdraw = 12,  // the sender has given up
  kRefuse = 13,    // the receive is for another type or size: a ToldError
  kClaimed = 14,   // messages of so many bytes (number) wait here no more, of any group
};

// Two streams from one rank to another in one collective: what it brings, and what it has reduced.
enum class Channel : uint8_t { kInput = 0, kResult = 1 };
inline constexpr size_t kChannels = 2;

struct Header {
  uint64_t group = 0;   // hash of its name
  uint64_t number = 0;  // see Kind
  uint64_t count = 0;   // elements of a message
  int32_t from = -1;    // rank in the group
  int32_t tag = 0;
  Kind kind = Kind::kNone;
  uint8_t type = 0;  // DType of a message
  Channel channel = Channel::kInput;
  uint8_t unused[5] = {};
};
static_assert(sizeof(Header) == 40);

// Threading: a value.
struct Packet {
  int rank = -1;  // of the job, who sent it
  Header header;
  std::unique_ptr<std::byte[]> memory;  // header and content
  size_t bytes = 0;                     // of both

  std::span<const std::byte> content() const noexcept {
    return {memory.get() + sizeof(Header), bytes - sizeof(Header)};
  }
};

// How much one packet carries of what is large, and how much may be on its way to one rank.
inline constexpr size_t kPartBytes = size_t{256} << 10;
inline constexpr size_t kWindowBytes = 4 * kPartBytes;

}  // namespace farspan::dist::mpi
