// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TcpConnection: one conversation of a TcpStore with its server, over a socket that blocks with a
// deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/store/server_connections.h>

namespace farspan::dist {

// Threading: one thread at a time.
class TcpConnection {
 public:
  // Connects and greets, once.
  //   throws  Error kUnavailable, kTimeout, kDisconnected, kCorrupt (there is something else),
  //           kOverloaded
  TcpConnection(const net::HostPort& where, Deadline deadline);

  // False when the server has gone, or has said something that nobody asked for.
  bool is_idle() const noexcept;

  //   throws  Error kDisconnected, kTimeout; the connection is of no use then
  void send(std::string_view bytes, Deadline deadline);
  uint8_t read_u8(Deadline deadline);
  uint32_t read_u32(Deadline deadline);
  int64_t read_i64(Deadline deadline);
  //   throws  also Error kCorrupt: longer than any answer may be
  std::string read_text(Deadline deadline);
  std::vector<std::string> read_texts(size_t count, Deadline deadline);

  // Returns when the server has done all that was sent before.
  void ping(Deadline deadline);

  // Waits until the keys (as on the wire) exist; false at the deadline. The connection is good for
  // more in both cases.
  bool wait(const std::vector<std::string>& keys, Deadline deadline);

  // Takes a value out of a queue (as on the wire); nothing when it is empty. Asks even if the time
  // is over, and awaits the answer for the grace of `times` at least.
  std::optional<std::string> pop(const std::string& queue, Deadline deadline,
                                 const ServerTimes& times = {});

 private:
  void fill(size_t size, Deadline deadline);
  template <class Integer>
  Integer read_integer(Deadline deadline);
  bool cancel_wait();

  net::OwnedDescriptor fd_;
  std::string input_;
  size_t taken_ = 0;  // of input_
  uint32_t nonce_;
};

}  // namespace farspan::dist
