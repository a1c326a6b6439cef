#include <farspan/c10d/store/address_towards.h>

#include <netdb.h>
#include <sys/socket.h>

#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::dist {

std::optional<std::string> address_towards(const Store& store) {
  const std::string address = store.address();
  // "tcp://host:port", and what may follow: "redis://host:port/0?prefix=job".
  const auto begin = address.find("://");
  if (begin == std::string::npos || address.starts_with("file:")) return std::nullopt;
  const std::string place =
      address.substr(begin + 3, address.find_first_of("/? ", begin + 3) - begin - 3);
  const auto colon = place.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = place.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), place.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return std::nullopt;
  }
  // Connecting a datagram socket sends nothing, but chooses the way.
  const net::OwnedDescriptor fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage mine{};
  socklen_t size = sizeof mine;
  char text[NI_MAXHOST] = "";
  const bool ok = fd && connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&mine), &size) == 0 &&
                  getnameinfo(reinterpret_cast<const sockaddr*>(&mine), size, text, sizeof text,
                              nullptr, 0, NI_NUMERICHOST) == 0;
  freeaddrinfo(found);
  if (!ok) return std::nullopt;
  return text;
}

}  // namespace farspan::dist
