#include <farspan/c10d/backends/cpu/host_line.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <farspan/c10d/net/unix_socket.h>

namespace farspan::dist::cpu {
namespace {

constexpr Millis kRetryAfter{2};  // while the listener's backlog is full

// Room for one descriptor beside a message.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

net::OwnedDescriptor dial_host_socket(const std::string& name, Deadline deadline) {
  while (true) {
    net::OwnedDescriptor socket = net::new_unix_socket();
    const int error = net::connect_unix(socket.get(), name);
    if (error == 0) return socket;
    if (error != EAGAIN && error != EINTR) {
      throw Error(Code::kDisconnected,
                  std::string("the other process is gone: ") + std::strerror(error));
    }
    if (deadline.expired()) {
      throw Error(Code::kTimeout, "too many others connect to it, or it has stopped");
    }
    std::this_thread::sleep_for(kRetryAfter);
  }
}

// Becomes readable when the process has ended.
class HostLine::ProcessWatch final : public net::Source {
 public:
  ProcessWatch(net::Reactor& reactor, net::OwnedDescriptor process, std::weak_ptr<Source> line)
      : reactor_(reactor), process_(std::move(process)), line_(std::move(line)) {}

  int descriptor() const noexcept override { return process_.get(); }
  bool pump(net::Role& role) noexcept override {
    pollfd look{process_.get(), POLLIN, 0};
    if (poll(&look, 1, 0) <= 0) return false;
    const auto keep = shared_from_this();
    reactor_.remove(*this);
    role.release();
    if (const auto line = std::static_pointer_cast<HostLine>(line_.lock())) line->end();
    return true;
  }

 private:
  net::Reactor& reactor_;
  const net::OwnedDescriptor process_;
  const std::weak_ptr<Source> line_;
};

HostLine::HostLine(net::Reactor& reactor, net::OwnedDescriptor socket, OnMessage on_message,
                   OnEnd on_end)
    : reactor_(reactor),
      socket_(std::move(socket)),
      on_message_(std::move(on_message)),
      on_end_(std::move(on_end)) {}

void HostLine::open() {
  if (const pid_t peer = net::peer_process(socket_.get()); peer > 0) {
    net::OwnedDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, peer, 0)));
    const bool is_dead = !process && errno == ESRCH;
    if (process) {
      process_ = std::make_shared<ProcessWatch>(reactor_, std::move(process), weak_from_this());
    }
    if (is_dead) return end();
  }
  reactor_.add(shared_from_this());
  if (process_) reactor_.add(process_);
}

void HostLine::close() noexcept {
  if (closed_.exchange(true)) return;
  reactor_.remove(*this);
  if (process_) reactor_.remove(*process_);
  shutdown(socket_.get(), SHUT_RDWR);
}

void HostLine::end() noexcept {
  if (closed_.exchange(true)) return;
  const auto keep = shared_from_this();
  reactor_.remove(*this);
  if (process_) reactor_.remove(*process_);
  on_end_(*this);
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
      role.release();
      end();
      return true;
  }
  return true;
}

}  // namespace farspan::dist::cpu
