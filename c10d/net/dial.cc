#include <farspan/c10d/net/dial.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan::net {
namespace {

constexpr int kListenBacklog = 1024;  // the system lowers it to net.core.somaxconn

bool out_of_descriptors(int code) noexcept { return code == EMFILE || code == ENFILE; }

Error dial_error(const HostPort& where, const std::string& at, int code, TimePoint start) {
  const Code kind = code == ETIMEDOUT          ? Code::kTimeout
                    : out_of_descriptors(code) ? Code::kOverloaded
                                               : Code::kUnavailable;
  std::string message = "cannot connect to " + where.to_string();
  if (at != where.to_string()) message += " (" + at + ")";
  Error error(kind, message + ": " + std::strerror(code));
  error.elapsed(Clock::now() - start);
  if (kind == Code::kOverloaded) {
    error.advice("raise the limit of open files (ulimit -n)");
  } else {
    error.advice("is the other side running, and is this its address?");
  }
  return error;
}

// False when the deadline passed first.
bool wait_for(int fd, short events, Deadline deadline) {
  pollfd poller{fd, events, 0};
  while (true) {
    const int ready = poll(&poller, 1, deadline.poll_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.expired()) return false;
    if (ready < 0 && errno != EINTR && errno != EAGAIN) {
      throw Error(Code::kInternal, std::string("poll: ") + std::strerror(errno));
    }
  }
}

// A connected socket, or none and the reason in errno.
OwnedDescriptor dial_one(const SocketAddress& address, Deadline deadline) {
  OwnedDescriptor fd(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return {};
  if (connect(fd.get(), address.get(), address.size()) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return {};
    if (!wait_for(fd.get(), POLLOUT, deadline)) {
      errno = ETIMEDOUT;
      return {};
    }
    int code = 0;
    socklen_t size = sizeof code;
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
    if (code != 0) {
      errno = code;
      return {};
    }
  }
  // On loopback, a socket whose own port the system took from the ephemeral range may meet itself
  // when nobody listens there.
  if (SocketAddress::local_of(fd.get()) == SocketAddress::remote_of(fd.get())) {
    errno = ECONNREFUSED;
    return {};
  }
  tune_connection(fd.get());
  return fd;
}

// A listening socket, or none and the reason in errno.
OwnedDescriptor listen_one(const SocketAddress& address) {
  OwnedDescriptor fd(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return {};
  const int on = 1;
  // A port with connections in TIME_WAIT may be taken again; one that is listened on may not.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (bind(fd.get(), address.get(), address.size()) != 0) return {};
  if (listen(fd.get(), kListenBacklog) != 0) return {};
  return fd;
}

Error listen_error(const HostPort& where, int code) {
  const std::string message = "cannot listen on " + where.to_string() + ": " + std::strerror(code);
  switch (code) {
    case EADDRINUSE:
      return Error(Code::kAlreadyExists, message)
          .advice("another program has this port: end it, or choose another");
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
      return Error(Code::kUnavailable, message)
          .advice("this host does not have that address: give one of its own, see `ip addr`");
    case EACCES:
      return Error(Code::kInvalidArgument, message).advice("choose a port above 1023");
    default:
      return Error(out_of_descriptors(code) ? Code::kOverloaded : Code::kUnavailable, message);
  }
}

bool not_of_this_host(int code) noexcept { return code == EADDRNOTAVAIL || code == EAFNOSUPPORT; }

Error connection_lost(const char* doing, int code) {
  return Error(Code::kDisconnected, std::string(doing) + ": " + std::strerror(code));
}

}  // namespace

OwnedDescriptor dial(const HostPort& where, Deadline deadline) {
  const TimePoint start = Clock::now();
  std::optional<Error> failure;
  const std::vector<SocketAddress> addresses = resolve(where, deadline);
  for (size_t i = 0; i < addresses.size(); ++i) {
    // An address that swallows packets must leave time for those after it.
    const auto left = static_cast<Clock::rep>(addresses.size() - i);
    const Deadline share =
        deadline.is_never() ? deadline : Deadline::after(deadline.remaining() / left);
    OwnedDescriptor fd = dial_one(addresses[i], share);
    if (fd) return fd;
    failure = dial_error(where, addresses[i].to_string(), errno, start);
  }
  throw *failure;
}

std::vector<OwnedDescriptor> listen_on(const HostPort& where, Deadline deadline) {
  const std::vector<SocketAddress> addresses = resolve(where, deadline);
  // A free port of the first address may be taken at the second: then another is tried.
  for (int attempts_left = where.port == 0 ? 16 : 1;; --attempts_left) {
    std::vector<OwnedDescriptor> listening;
    HostPort chosen = where;
    int failure = 0;
    for (SocketAddress address : addresses) {
      address.set_port(chosen.port);
      OwnedDescriptor fd = listen_one(address);
      if (fd) {
        chosen.port = SocketAddress::local_of(fd.get()).port();
        listening.push_back(std::move(fd));
      } else {
        failure = errno;
        if (!not_of_this_host(failure)) break;
      }
    }
    if (failure == 0 || (!listening.empty() && not_of_this_host(failure))) return listening;
    // Half a service would send some clients to a stranger's port.
    if (failure != EADDRINUSE || attempts_left <= 1) throw listen_error(chosen, failure);
  }
}

void tune_connection(int fd) noexcept {
  const auto set = [fd](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);          // s of silence before the first probe
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);          // s between probes
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);            // probes without an answer
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // ms for bytes that were sent
}

void send_all(int fd, const void* bytes, size_t size, Deadline deadline) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      size -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd, POLLOUT, deadline)) {
        throw Error(Code::kTimeout, "the other side does not read what is sent to it");
      }
    } else if (errno != EINTR) {
      throw connection_lost("sending failed", errno);
    }
  }
}

size_t receive_some(int fd, void* bytes, size_t size, Deadline deadline) {
  while (true) {
    const ssize_t got = recv(fd, bytes, size, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) throw Error(Code::kDisconnected, "the other side closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd, POLLIN, deadline)) {
        throw Error(Code::kTimeout, "no answer");
      }
    } else if (errno != EINTR) {
      throw connection_lost("receiving failed", errno);
    }
  }
}

}  // namespace farspan::net
