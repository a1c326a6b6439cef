// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Room: what this rank knows of one group: what has come for it, who has left, why it is of no use.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <farspan/c10d/backends/messages/inbox.h>
#include <farspan/c10d/backends/mpi/packet.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::mpi {

// Where the bytes of one rank go in a collective, one place after the other.
//
// Threading: none; the hub has a lock.
class Stream {
 public:
  void expect(std::span<std::byte> place) {
    if (!place.empty()) places_.push_back(place);
    expected_ += place.size();
  }
  // Throws kCorrupt when more comes than is expected.
  void pour(std::span<const std::byte> bytes);

  uint64_t came() const noexcept { return came_; }
  uint64_t expected() const noexcept { return expected_; }

 private:
  std::deque<std::span<std::byte>> places_;  // what is not full yet
  uint64_t came_ = 0, expected_ = 0;
};

// Threading: none; the hub has a lock.
struct Room {
  // A message that nobody has asked for: it, or an offer of it.
  struct Content {
    Packet packet;  // of the whole message, or:
    int rank = -1;  // of the job, who has made the offer
    uint64_t offer = 0;
  };
  using Inbox = messages::Inbox<Content>;

  uint64_t id = 0;
  GroupSpec spec;                  // its ranks: empty, until this rank uses the group
  std::vector<std::string> names;  // of these
  bool is_left = false;            // by this rank
  std::optional<Error> failure;
  uint64_t failed_since = 0;  // the first collective that ends with it
  uint64_t call = 0;          // the collective entered last, here
  std::set<int> left;         // others, by rank in the group

  // By rank in the group: calls that this rank has not come to.
  std::map<int, std::deque<Packet>> entered;
  // Of the call under way here: by rank and channel, and what each rank is ready for. Empty: none,
  // and what comes for it is of one that was given up.
  std::vector<std::array<Stream, kChannels>> streams;
  std::vector<uint64_t> ready;

  Inbox inbox;

  // That the collective entered last is not before the failure.
  bool has_failed() const noexcept { return failure && failed_since <= call; }
  // "rank 3 (host:pid)", in the default group.
  std::string name_of(int rank) const;
  Error has_left(int rank) const;
  // Why nothing more can come for a receive from this rank, or from anyone (-1).
  std::optional<Error> why_none(int rank) const;
};

}  // namespace farspan::dist::mpi
