#include <farspan/c10d/net/address.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::net {
namespace {

constexpr size_t kMaxHostBytes = 253;  // what DNS allows

bool is_host_byte(char c) noexcept {
  // Letters, digits and "-._" in names; ':' and '%' (a scope) in IPv6 addresses.
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::strchr("-._:%", c) != nullptr;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw Error(Code::kInvalidArgument, "'" + std::string(text.substr(0, 300)) + "': " + why)
      .advice("write host:port, 1.2.3.4:port or [::1]:port");
}

void check_host(std::string_view host, std::string_view text) {
  if (host.empty()) refuse(text, "the host is missing");
  if (host.size() > kMaxHostBytes) refuse(text, "the host has more than 253 bytes");
  // strchr finds the terminator too.
  const auto good = [](char c) { return c != '\0' && is_host_byte(c); };
  if (!std::all_of(host.begin(), host.end(), good)) {
    refuse(text, "the host has a byte that no host name or address has");
  }
}

std::vector<SocketAddress> collect(const addrinfo* found) {
  std::vector<SocketAddress> addresses;
  for (; found; found = found->ai_next) {
    if (found->ai_family != AF_INET && found->ai_family != AF_INET6) continue;
    const SocketAddress address(found->ai_addr, found->ai_addrlen);
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  }
  return addresses;
}

// What getaddrinfo said: addresses, or why not.
struct Answer {
  std::vector<SocketAddress> addresses;
  int status = 0;
  int system_error = 0;
};

Answer look_up(const HostPort& where, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  Answer answer;
  answer.status =
      getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  answer.system_error = errno;
  if (answer.status == 0) {
    answer.addresses = collect(found);
    freeaddrinfo(found);
  }
  return answer;
}

// Shared by the thread that asks and the one that waits; whoever is last frees it.
struct LookUp {
  Mutex mutex;
  CondVar done;
  Answer answer FARSPAN_GUARDED_BY(mutex);
  bool ready FARSPAN_GUARDED_BY(mutex) = false;
};

Error no_address(const HostPort& where, const Answer& answer, Clock::duration elapsed) {
  std::string why = answer.status == EAI_SYSTEM ? std::strerror(answer.system_error)
                    : answer.status != 0        ? gai_strerror(answer.status)
                                                : "it has neither an IPv4 nor an IPv6 address";
  return Error(Code::kUnavailable, "cannot find the address of '" + where.host + "': " + why)
      .elapsed(elapsed)
      .advice("check the name for spelling, or give an IP address");
}

}  // namespace

std::string HostPort::to_string() const {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

uint16_t parse_port(std::string_view text, std::string_view what) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port > 65535) {
    throw Error(Code::kInvalidArgument, std::string(what) + " is '" +
                                            std::string(text.substr(0, 64)) +
                                            "', which is no port number")
        .advice("a port is a number from 0 to 65535");
  }
  return static_cast<uint16_t>(port);
}

HostPort parse_host_port(std::string_view text) {
  const size_t bracket = text.starts_with('[') ? text.find(']') : std::string_view::npos;
  const bool has_brackets = bracket != std::string_view::npos;
  const size_t colon = text.find(':', has_brackets ? bracket : 0);
  if (!has_brackets && colon != text.rfind(':')) {
    refuse(text, "an IPv6 address stands in brackets");
  }
  if (colon == std::string_view::npos && !text.empty()) refuse(text, "the port is missing");
  if (has_brackets && colon != bracket + 1) refuse(text, "after ']' comes ':' and the port");
  const std::string_view host = has_brackets ? text.substr(1, bracket - 1) : text.substr(0, colon);
  check_host(host, text);
  return {std::string(host),
          parse_port(text.substr(colon + 1), "the port of '" + std::string(text) + "'")};
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size) noexcept
    : size_(std::min<socklen_t>(size, sizeof storage_)) {
  std::memcpy(&storage_, address, size_);
}

SocketAddress SocketAddress::local_of(int fd) noexcept {
  SocketAddress address;
  address.size_ = sizeof address.storage_;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) {
    return {};
  }
  return address;
}

SocketAddress SocketAddress::remote_of(int fd) noexcept {
  SocketAddress address;
  address.size_ = sizeof address.storage_;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) {
    return {};
  }
  return address;
}

uint16_t SocketAddress::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  }
  return 0;
}

void SocketAddress::set_port(uint16_t port) noexcept {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(port);
}

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
}

bool SocketAddress::is_wildcard() const noexcept {
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (family() != AF_INET6) return false;
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&ip);
}

std::string SocketAddress::to_string() const {
  char host[NI_MAXHOST];
  if (family() == AF_UNSPEC ||
      getnameinfo(get(), size_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "(no address)";
  }
  return HostPort{host, port()}.to_string();
}

bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept {
  return a.size_ == b.size_ && std::memcmp(&a.storage_, &b.storage_, a.size_) == 0;
}

std::vector<SocketAddress> resolve(const HostPort& where, Deadline deadline) {
  check_host(where.host, where.host);
  const TimePoint start = Clock::now();
  Answer answer = look_up(where, AI_NUMERICHOST);
  if (answer.status == 0 && !answer.addresses.empty()) return std::move(answer.addresses);

  auto shared = std::make_shared<LookUp>();
  try {
    std::thread([shared, where] {
      Answer got = look_up(where, AI_ADDRCONFIG);
      // AI_ADDRCONFIG hides loopback on a host that has no other network.
      if (got.status != 0) got = look_up(where, 0);
      MutexLock lock(shared->mutex);
      shared->answer = std::move(got);
      shared->ready = true;
      shared->done.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    throw Error(Code::kOverloaded, "cannot start a thread to look up '" + where.host + "'");
  }
  MutexLock lock(shared->mutex);
  while (!shared->ready) {
    if (!shared->done.wait_until(shared->mutex, deadline) && !shared->ready) {
      throw Error(Code::kTimeout, "no answer yet to where '" + where.host + "' is")
          .elapsed(Clock::now() - start)
          .advice("check the name service of this host, or give an IP address");
    }
  }
  if (shared->answer.addresses.empty()) {
    throw no_address(where, shared->answer, Clock::now() - start);
  }
  return std::move(shared->answer.addresses);
}

}  // namespace farspan::net
