// ReservedPort: a port of loopback where nobody listens, and that only a listener of this test can
// take: bound with SO_REUSEADDR, which listeners set as well.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <stdexcept>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::testing {

class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      throw std::runtime_error("no free port");
    }
  }
  uint16_t number() const { return net::SocketAddress::local_of(fd_.get()).port(); }

 private:
  net::OwnedDescriptor fd_;
};

}  // namespace farspan::testing
