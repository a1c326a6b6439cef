// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Address: "host:port" as people write it, and the socket addresses that it stands for.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/time.h>

namespace farspan::net {

// A host name, IPv4 or IPv6 address (without brackets), and a port.
struct HostPort {
  std::string host;
  uint16_t port = 0;

  // "host:port"; an IPv6 address gets brackets: "[::1]:29500".
  std::string to_string() const;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Reads "host:port", "1.2.3.4:80" or "[::1]:80".
//   throws  Error kInvalidArgument: no host, no port, a port outside 0..65535, an IPv6 address
//           without brackets, a name longer than 253 bytes or with bytes that no name has
HostPort parse_host_port(std::string_view text);

// The port number in `text`: digits only, 0..65535.
//   throws  Error kInvalidArgument; `what` names the source in its message ("MASTER_PORT")
uint16_t parse_port(std::string_view text, std::string_view what);

// An IPv4 or IPv6 socket address.
//
// Threading: a value.
class SocketAddress {
 public:
  SocketAddress() noexcept = default;  // family AF_UNSPEC
  SocketAddress(const sockaddr* address, socklen_t size) noexcept;

  // What `fd` is bound to, or connected to; AF_UNSPEC when it is neither.
  static SocketAddress local_of(int fd) noexcept;
  static SocketAddress remote_of(int fd) noexcept;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const noexcept { return size_; }
  int family() const noexcept { return storage_.ss_family; }
  uint16_t port() const noexcept;
  void set_port(uint16_t port) noexcept;
  bool is_loopback() const noexcept;  // 127.0.0.0/8, ::1, and the former inside IPv6
  bool is_wildcard() const noexcept;  // 0.0.0.0, ::

  // "127.0.0.1:80", "[::1]:80"; "(no address)" for AF_UNSPEC.
  std::string to_string() const;
  friend bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept;

 private:
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

// All addresses of a host, in the system's order of preference, each once. Numeric addresses are
// read without asking anybody; a name is looked up on a helper thread, so that the deadline holds
// even while the system's resolver hangs (the thread then ends when the resolver does).
//   throws  Error kUnavailable (no such host, or the resolver failed), kTimeout, kInvalidArgument
std::vector<SocketAddress> resolve(const HostPort& where, Deadline deadline);

}  // namespace farspan::net
