// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Meeting: one collective under way: who has come to it, and what goes from rank to rank.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <farspan/c10d/backends/mpi/hub.h>
#include <farspan/c10d/backends/mpi/room.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::mpi {

// What goes to each rank of the group; this rank's own entry is not looked at.
using Parts = std::vector<std::span<const std::byte>>;

// First all that is expected is named, then all ranks enter() at once, then send() and await().
// Nothing is written to what was expected once the meeting has gone, however it ended.
//
// Methods throw what Backend says.
//
// Threading: one thread.
class Meeting {
 public:
  Meeting(Hub& hub, Room& room, const Call& call);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int rank() const noexcept { return room_.spec.rank; }
  int size() const noexcept { return room_.spec.size(); }

  // The next bytes from `rank` on this channel go to `place`.
  void expect(int rank, std::span<std::byte> place, Channel channel = Channel::kInput);

  // Tells all ranks which call this is, and waits until all have come and agree; then sends them
  // `parts`, small ones with the first word.
  //   table  empty, or for each rank how many elements go there, and then how many are expected of
  //   it
  void enter(const Parts& parts, std::span<const uint64_t> table = {});

  // Returns when all is on its way, copied.
  void send(const Parts& parts, Channel channel = Channel::kInput);

  // Until so many bytes have come from each rank since the meeting began.
  void await(const std::function<uint64_t(int rank)>& bytes, Channel channel = Channel::kInput);
  void await_all();  // that was expected

  // Says that this rank has done with `slices` slices; waits until all have done with so many.
  void tell_ready(uint64_t slices);
  void await_ready(uint64_t slices);

 private:
  void check_signature(int rank, const Packet& packet) const;
  void check_tables(std::span<const uint64_t> own, const std::vector<Packet>& come) const;
  Header header(Kind kind) const;
  int job_rank(int rank) const { return room_.spec.ranks[static_cast<size_t>(rank)]; }

  Hub& hub_;
  Room& room_;
  const Call& call_;
  const TimePoint begun_ = Clock::now();
  std::vector<std::array<Stream, kChannels>> streams_;  // until enter()
};

}  // namespace farspan::dist::mpi
