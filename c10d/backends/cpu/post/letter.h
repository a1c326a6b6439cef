// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Letter: what travels between the posts of two ranks.
#pragma once

#include <bit>
#include <cstdint>

namespace farspan::dist::cpu {

// A line belongs to who dialled it: its messages go one way on it. Answers go by a line of who
// answers, or back on it. Numbers
// as they lie in memory, little-endian; `bytes` more follow.
struct Letter {
  enum Kind : uint8_t {
    // There:
    kHello = 1,  // the first: `from` is the dialler's rank in the default group, `offer` the token
                 // of who listens
    kMessage = 2,   // with its bytes
    kOffer = 3,     // a message that is too large to be sent before somebody asks for it, or is
                    // announced; an Origin follows where its bytes may be read there
    kData = 4,      // a part of what was accepted, from `offset` on
    kWithdraw = 5,  // of an offer: whoever sent it has given up
    kAskLeft = 6,   // whether the other end, `from` in the group, has left it
    kFailed = 7,    // the group is of no use any more, from the collective `count` on; a ToldError
                    // follows
    kAskWaits = 8,  // for whom the other end waits in the group's collectives
    // Answers:
    kAccept = 16,   // of an offer
    kRefuse = 17,   // of an offer; a ToldError says why
    kClaimed = 18,  // messages of so many bytes (`count`) have been asked for
    kTaken = 19,    // of an offer, whose bytes have been read where they lay
    kWaits = 20,    // of kAskWaits, with its `offer`: for `from`, in the default group, or nobody;
                    // `count`: 1 if that one has called the collective
    // Both ways:
    kLeft = 32,  // `from` has left the group
  };
  static constexpr uint32_t kMagic = 0x31504c46;

  uint32_t magic = kMagic;
  Kind kind = kHello;
  uint8_t type = 0;          // DType
  uint8_t is_announced = 0;  // 1: the elements are on a device
  uint8_t reserved = 0;
  int32_t from = -1;  // rank in the group
  int32_t tag = 0;
  uint64_t group = 0;
  uint64_t count = 0;  // elements of the message
  uint64_t offer = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Letter) == 56);
static_assert(std::endian::native == std::endian::little);

// Where the bytes of an offer lie in the memory of who sends it, and a number beside it that
// changes before they do.
struct Origin {
  uint64_t address = 0;
  uint64_t mark_address = 0;
  uint64_t mark = 0;
};
static_assert(sizeof(Origin) == 24);

// Messages up to this size are sent at once, whether somebody has asked for them or not.
inline constexpr uint64_t kEagerBytes = 32 << 10;
// As long as those that nobody has asked for are no more than this, for each pair of ranks.
inline constexpr uint64_t kUnclaimedBytes = 4 << 20;
// Larger ones travel in parts, between which others may pass.
inline constexpr uint64_t kPartBytes = 1 << 20;

}  // namespace farspan::dist::cpu
