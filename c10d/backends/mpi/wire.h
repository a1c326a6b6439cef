// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Wire: packets to and from all ranks of the job, through MPI. Nothing here blocks.
#pragma once

#include <mpi.h>

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include <farspan/c10d/backends/mpi/packet.h>

namespace farspan::dist::mpi {

// MPI sees copies only, which live until it has let go of them: what it has begun it may read or
// write at any later time, and it can not always be made to stop. So who gives up an operation has
// its memory back at once.
//
// Methods throw Error kUnavailable where MPI fails.
//
// Threading: none; its owner has a lock.
class Wire {
 public:
  explicit Wire(MPI_Comm ranks);
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // `content`, and `more` behind it.
  void send(int rank, const Header& header, std::span<const std::byte> content = {},
            std::span<const std::byte> more = {});

  // What has come, if anything: those of one rank in the order in which they were sent.
  std::optional<Packet> receive();

  // Forgets the copies of what has left.
  void tidy();

  // Bytes on their way to one rank, to all.
  size_t under_way(int rank) const noexcept { return under_way_[static_cast<size_t>(rank)]; }
  bool is_idle() const noexcept { return requests_.empty() && arriving_.empty() && own_.empty(); }

 private:
  struct Leaving {
    int rank;
    size_t bytes;
    std::unique_ptr<std::byte[]> memory;
  };
  struct Arriving {
    MPI_Request request;
    Packet packet;
  };

  void look_for_packets();

  const MPI_Comm ranks_;
  int rank_ = 0, size_ = 0;
  std::vector<size_t> under_way_;      // by rank
  std::vector<MPI_Request> requests_;  // of leaving_, each at the same index
  std::vector<Leaving> leaving_;
  std::vector<int> done_;  // room for MPI_Testsome
  std::deque<Arriving> arriving_;
  std::deque<Packet> own_;  // from this rank to itself
};

//   throws  Error kUnavailable where `result` says so
void check(int result, const char* call);

}  // namespace farspan::dist::mpi
