#include <farspan/c10d/net/unix_socket.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>
#include <tuple>

#include <farspan/c10d/base/error.h>

namespace farspan::net {
namespace {

class Address {
 public:
  explicit Address(const std::string& name) noexcept : fits_(name.size() < sizeof bytes_.sun_path) {
    bytes_.sun_family = AF_UNIX;
    if (fits_) std::memcpy(bytes_.sun_path + 1, name.data(), name.size());
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  bool fits() const noexcept { return fits_; }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t size() const noexcept { return size_; }

 private:
  sockaddr_un bytes_{};
  bool fits_;
  socklen_t size_;
};

ucred peer_of(int socket) noexcept {
  ucred peer{0, static_cast<uid_t>(-1), static_cast<gid_t>(-1)};
  socklen_t size = sizeof peer;
  getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer;
}

// Room for descriptors beside a message.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(std::tuple_size_v<PassedDescriptors> * sizeof(int))];
};

}  // namespace

OwnedDescriptor new_unix_socket() {
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket) return socket;
  throw Error(Code::kOverloaded, std::string("no unix socket: ") + std::strerror(errno))
      .advice("raise the limit of open files (ulimit -n)");
}

NamedSocket bind_unix_socket() {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "farspan-%d-%08x%08x", getpid(), random(), random());
  NamedSocket bound{new_unix_socket(), text};
  const Address address(bound.name);
  if (bind(bound.socket.get(), address.get(), address.size()) == 0) return bound;
  throw Error(Code::kUnavailable, std::string("bind a unix socket: ") + std::strerror(errno));
}

int connect_unix(int socket, const std::string& name) noexcept {
  const Address address(name);
  if (!address.fits()) return ENAMETOOLONG;
  return connect(socket, address.get(), address.size()) == 0 ? 0 : errno;
}

bool send_with_descriptors(int socket, std::span<const std::byte> message,
                           std::span<const int> descriptors) noexcept {
  iovec piece{const_cast<std::byte*>(message.data()), message.size()};
  Control control{};
  msghdr envelope{};
  envelope.msg_iov = &piece;
  envelope.msg_iovlen = 1;
  if (descriptors.size_bytes() > sizeof control.bytes - CMSG_LEN(0)) return false;
  if (!descriptors.empty()) {
    envelope.msg_control = control.bytes;
    envelope.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(&control.header), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(socket, &envelope, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(message.size());
}

ssize_t receive_with_descriptors(int socket, std::span<std::byte> place,
                                 PassedDescriptors& descriptors) noexcept {
  iovec piece{place.data(), place.size()};
  Control control{};
  msghdr envelope{};
  envelope.msg_iov = &piece;
  envelope.msg_iovlen = 1;
  envelope.msg_control = control.bytes;
  envelope.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(socket, &envelope, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) return got;
  const cmsghdr* const beside = CMSG_FIRSTHDR(&envelope);
  if (beside && beside->cmsg_level == SOL_SOCKET && beside->cmsg_type == SCM_RIGHTS) {
    const size_t count = (beside->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count && i < descriptors.size(); ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(beside) + i * sizeof number, sizeof number);
      descriptors[i] = OwnedDescriptor(number);
    }
  }
  return got;
}

bool is_same_user(int socket) noexcept { return peer_of(socket).uid == geteuid(); }

pid_t peer_process(int socket) noexcept { return peer_of(socket).pid; }

}  // namespace farspan::net
