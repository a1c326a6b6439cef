#include <farspan/c10d/backends/cpu/host_line.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

namespace farspan::dist::cpu {
namespace {

constexpr Millis kRetryAfter{2};  // while the listener's backlog is full

socklen_t fill(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof address.sun_path - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Error failure(Code code, const char* what, int error) {
  return Error(code, std::string(what) + ": " + std::strerror(error));
}

net::OwnedDescriptor new_socket() {
  net::OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket) return socket;
  throw failure(Code::kOverloaded, "no unix socket", errno)
      .advice("raise the limit of open files (ulimit -n)");
}

// Room for one descriptor beside a message.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

HostMessage HostMessage::failure(uint64_t id, int rank, const Error& why) {
  HostMessage message;
  message.kind = kFail;
  message.id = id;
  message.rank = rank;
  message.code = static_cast<uint16_t>(why.code());
  const std::string& text = why.message();
  std::memcpy(message.text.data(), text.data(), std::min(text.size(), message.text.size() - 1));
  return message;
}

Error HostMessage::error() const {
  return Error(code_from_wire(code), std::string(text.data(), strnlen(text.data(), text.size())));
}

net::OwnedDescriptor bind_host_socket(std::string* name) {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "farspan-group-%d-%08x%08x", getpid(), random(), random());
  *name = text;
  net::OwnedDescriptor socket = new_socket();
  sockaddr_un address;
  const socklen_t size = fill(address, *name);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    throw failure(Code::kUnavailable, "bind a unix socket", errno);
  }
  return socket;
}

net::OwnedDescriptor dial_host_socket(const std::string& name, Deadline deadline) {
  sockaddr_un address;
  const socklen_t size = fill(address, name);
  while (true) {
    net::OwnedDescriptor socket = new_socket();
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) {
      return socket;
    }
    if (errno != EAGAIN && errno != EINTR) {
      throw failure(Code::kDisconnected, "its process is gone", errno);
    }
    if (deadline.expired()) {
      throw Error(Code::kTimeout, "too many others connect to it, or it has stopped");
    }
    std::this_thread::sleep_for(kRetryAfter);
  }
}

bool is_same_user(int socket) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

HostLine::HostLine(net::Reactor& reactor, net::OwnedDescriptor socket, OnMessage on_message,
                   OnEnd on_end)
    : reactor_(reactor),
      socket_(std::move(socket)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {}

void HostLine::open() { reactor_.add(shared_from_this()); }

void HostLine::close() noexcept {
  if (closed_.exchange(true)) return;
  reactor_.remove(*this);
  shutdown(socket_.get(), SHUT_RDWR);
}

bool HostLine::send(const HostMessage& message, int descriptor) noexcept {
  iovec piece{const_cast<HostMessage*>(&message), sizeof message};
  Control control{};
  msghdr envelope{};
  envelope.msg_iov = &piece;
  envelope.msg_iovlen = 1;
  if (descriptor >= 0) {
    envelope.msg_control = control.bytes;
    envelope.msg_controllen = sizeof control.bytes;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
  }
  MutexLock lock(sending_);
  // So small a message goes whole, or not at all.
  return sendmsg(socket_.get(), &envelope, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

HostLine::Got HostLine::receive(HostMessage& message, net::OwnedDescriptor& descriptor) noexcept {
  iovec place{part_.data() + have_, part_.size() - have_};
  Control control{};
  msghdr envelope{};
  envelope.msg_iov = &place;
  envelope.msg_iovlen = 1;
  envelope.msg_control = control.bytes;
  envelope.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(socket_.get(), &envelope, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothing;
  if (got <= 0) return Got::kEnd;
  const cmsghdr* const beside = CMSG_FIRSTHDR(&envelope);
  if (beside && beside->cmsg_level == SOL_SOCKET && beside->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(beside), sizeof number);
    brought_ = net::OwnedDescriptor(number);
  }
  have_ += static_cast<size_t>(got);
  if (have_ < part_.size()) return Got::kNothing;
  have_ = 0;
  std::memcpy(&message, part_.data(), sizeof message);
  descriptor = std::move(brought_);
  return message.magic == HostMessage::kMagic ? Got::kMessage : Got::kEnd;
}

bool HostLine::pump(net::Role& role) noexcept {
  const auto keep = shared_from_this();
  HostMessage message;
  net::OwnedDescriptor descriptor;
  switch (receive(message, descriptor)) {
    case Got::kNothing:
      return false;
    case Got::kMessage:
      role.release();
      on_message_(*this, message, std::move(descriptor));
      return true;
    case Got::kEnd:
      if (!closed_.exchange(true)) {
        reactor_.remove(*this);
        role.release();
        on_end_(*this);
      }
      return true;
  }
  return true;
}

}  // namespace farspan::dist::cpu
