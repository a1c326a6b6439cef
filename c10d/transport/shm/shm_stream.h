// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ShmStream: a Stream over two rings in shared memory. A unix socket beside them wakes whoever
// sleeps, and tells of the end; while both sides poll nothing is asked of the system.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <farspan/c10d/net/level.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/shared_memory.h>
#include <farspan/c10d/transport/shm/ring.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

struct ShmLayout;

// What two ends share, and each has its descriptors of.
struct ShmParts {
  // Which ring is whose: the dialling side writes the first, the other one the second.
  enum Side { kDialled = 0, kAccepted = 1 };

  net::SharedMemory memory;
  net::Level room[2];  // of each side's own writing: made writable by the other one

  static constexpr size_t kRingBytes = 512 << 10;  // in each direction
  static size_t memory_bytes() noexcept;
  //   throws  Error kOverloaded: no descriptors or memory left
  static ShmParts create();
};

class ShmStream final : public Stream {
 public:
  ShmStream(net::OwnedDescriptor socket, ShmParts parts, ShmParts::Side side,
            std::string description);
  ~ShmStream() override { shut(); }

  IoResult read(const iovec* places, int count) noexcept override;
  IoResult write(const iovec* pieces, int count) noexcept override;
  bool expect_input() noexcept override;
  void expect_no_input() noexcept override { in_.wait_no_more(); }
  bool expect_room() noexcept override;
  int read_descriptor() const noexcept override { return socket_.get(); }
  int write_descriptor() const noexcept override { return room_.descriptor(); }
  void shut() noexcept override;
  bool is_local() const noexcept override { return true; }
  pid_t peer_process() const noexcept override;
  std::string describe() const override { return description_; }

 private:
  bool is_closed() const noexcept;
  void take_signals() noexcept;

  const net::OwnedDescriptor socket_;
  net::SharedMemory memory_;
  net::Level room_, their_room_;
  ShmLayout& layout_;
  RingReader in_;
  RingWriter out_;
  std::atomic<bool> signalled_{true};  // a signal may lie in the socket
  std::atomic<bool> gone_{false};      // the other process has closed its end
  const std::string description_;
};

}  // namespace farspan::transport
