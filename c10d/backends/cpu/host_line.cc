#include <farspan/c10d/backends/cpu/host_line.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include <farspan/c10d/net/unix_socket.h>

namespace farspan::dist::cpu {
namespace {

constexpr Millis kRetryAfter{2};  // while the listener's backlog is full

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

bool HostLine::is_open() const noexcept {
  MutexLock lock(opening_);
  return is_open_;
}

void HostLine::open() {
  std::shared_ptr<Source> watch;
  if (const pid_t peer = net::peer_process(socket_.get()); peer > 0) {
    net::OwnedDescriptor process(static_cast<int>(syscall(SYS_pidfd_open, peer, 0)));
    if (!process && errno == ESRCH) return end();
    if (process) {
      watch = std::make_shared<ProcessWatch>(reactor_, std::move(process), weak_from_this());
    }
  }
  MutexLock lock(opening_);
  if (closed_) return;
  reactor_.add(shared_from_this());
  if (watch) reactor_.add(watch);
  is_open_ = true;
  process_ = std::move(watch);
}

// False when it was so already.
bool HostLine::stop_reading() noexcept {
  MutexLock lock(opening_);
  if (std::exchange(closed_, true)) return false;
  if (is_open_) reactor_.remove(*this);
  if (process_) reactor_.remove(*process_);
  return true;
}

void HostLine::close() noexcept {
  if (stop_reading()) shutdown(socket_.get(), SHUT_RDWR);
}

void HostLine::end() noexcept {
  const auto keep = shared_from_this();
  if (stop_reading()) on_end_(*this);
}

bool HostLine::send(const HostMessage& message, int descriptor) noexcept {
  const std::span<const int> beside(&descriptor, descriptor >= 0 ? 1 : 0);
  MutexLock lock(sending_);
  return net::send_with_descriptors(socket_.get(), std::as_bytes(std::span(&message, 1)), beside);
}

HostLine::Got HostLine::receive(HostMessage& message, net::OwnedDescriptor& descriptor) noexcept {
  net::PassedDescriptors passed;
  const ssize_t got =
      net::receive_with_descriptors(socket_.get(), std::span(part_).subspan(have_), passed);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothing;
  if (got <= 0) return Got::kEnd;
  if (passed[0]) brought_ = std::move(passed[0]);
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
