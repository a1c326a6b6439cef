// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SocketStream: a Stream over a connected stream socket (unix or TCP).
#pragma once

#include <memory>
#include <string>

#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

class SocketStream final : public Stream {
 public:
  // Takes over `fd`, a connected socket; makes it non-blocking.
  //   throws  Error kOverloaded when no second descriptor can be had
  SocketStream(int fd, std::string description);
  ~SocketStream() override;

  IoResult read(const iovec* places, int count) noexcept override;
  IoResult write(const iovec* pieces, int count) noexcept override;
  int read_descriptor() const noexcept override { return fd_; }
  int write_descriptor() const noexcept override { return write_fd_; }
  void shut() noexcept override;
  bool is_local() const noexcept override { return is_local_; }
  bool crosses_network() const noexcept override { return crosses_network_; }
  pid_t peer_process() const noexcept override { return peer_process_; }
  std::string describe() const override { return description_; }

 private:
  const int fd_;
  const int write_fd_;  // a duplicate: epoll arms the two directions independently
  bool is_local_ = false, crosses_network_ = false;
  pid_t peer_process_ = 0;
  const std::string description_;
};

}  // namespace farspan::transport
