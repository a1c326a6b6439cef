// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Exchange: the messages of one collective between ranks of different hosts.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/team.h>

namespace farspan::dist::cpu::hosts {

// Where the messages of a group's collectives go.
struct Channel {
  Post* post = nullptr;
  uint64_t group = 0;
  const GroupSpec* spec = nullptr;
  const std::vector<std::string>* names = nullptr;  // by rank in the group
};

// What two ranks send each other arrives in the order of the calls, and has the size that was
// expected.
//
// Threading: one thread.
class Exchange {
 public:
  //   team  of the ranks of this host, who are told for whom this one waits
  Exchange(const Channel& channel, Team& team, Deadline deadline)
      : channel_(channel), team_(team), deadline_(deadline) {}
  // Where something is under way still, after an error, ends all that this group exchanges.
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Both return at once; the bytes stay the caller's until wait() or finish(). None: no message.
  using Ticket = std::pair<int, Future<int>>;  // with whom
  Ticket send(int rank, std::span<const std::byte> bytes);
  Ticket receive(int rank, std::span<std::byte> bytes);

  //   throws  Error kTimeout, kDisconnected (name the rank), kShapeMismatch, and how the group has
  //           failed
  void wait(const Ticket& ticket);
  void wait(std::vector<Ticket>& tickets);  // and forgets them
  // All that is under way.
  void finish();

  // From now on who does not answer has called the collective at least.
  void set_agreed() noexcept { agreed_ = true; }

 private:
  Ticket keep(int rank, Future<int> message);
  Message message(int rank) const;

  const Channel channel_;
  Team& team_;
  const Deadline deadline_;
  const TimePoint begun_ = Clock::now();
  bool agreed_ = false;
  std::vector<Ticket> under_way_;
};

}  // namespace farspan::dist::cpu::hosts
