#include <farspan/c10d/transport/socket_stream.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/net/descriptor.h>
#include <farspan/c10d/net/unix_socket.h>

namespace farspan::transport {
namespace {

// Larger than the default of 208 KiB, so that a large tensor needs few turns. The kernel caps it at
// net.core.wmem_max.
constexpr int kSocketBufferBytes = 4 << 20;

// Without the ports.
bool is_other_address(int fd) noexcept {
  net::SocketAddress here = net::SocketAddress::local_of(fd);
  net::SocketAddress there = net::SocketAddress::remote_of(fd);
  here.set_port(0);
  there.set_port(0);
  return !(here == there);
}

IoResult result_of(ssize_t moved, bool reading) noexcept {
  if (moved > 0) return {IoStatus::kOk, static_cast<size_t>(moved), 0};
  if (moved == 0 && reading) return {IoStatus::kClosed, 0, 0};
  if (moved == 0 || errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return {IoStatus::kWouldBlock, 0, 0};
  }
  if (errno == EPIPE || errno == ECONNRESET) return {IoStatus::kClosed, 0, errno};
  return {IoStatus::kFailed, 0, errno};
}

}  // namespace

SocketStream::SocketStream(int fd, std::string description)
    : fd_(fd), write_fd_(net::duplicate(fd)), description_(std::move(description)) {
  if (write_fd_ < 0) {
    const int error = errno;
    close(fd_);
    throw Error(Code::kOverloaded, std::string("duplicate a socket: ") + std::strerror(error))
        .operation("connect " + description_)
        .advice("raise the limit of open files (ulimit -n)");
  }
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL, 0) | O_NONBLOCK);
  int family = 0;
  socklen_t size = sizeof family;
  getsockopt(fd_, SOL_SOCKET, SO_DOMAIN, &family, &size);
  if (family == AF_UNIX) {  // TCP tunes its own
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &kSocketBufferBytes, sizeof kSocketBufferBytes);
    is_local_ = true;
    peer_process_ = net::peer_process(fd_);
  } else {
    crosses_network_ = is_other_address(fd_);
  }
}

SocketStream::~SocketStream() {
  close(write_fd_);
  close(fd_);
}

IoResult SocketStream::read(const iovec* places, int count) noexcept {
  if (count == 1)
    return result_of(recv(fd_, places->iov_base, places->iov_len, MSG_DONTWAIT), true);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(places);
  message.msg_iovlen = static_cast<size_t>(count);
  return result_of(recvmsg(fd_, &message, MSG_DONTWAIT), true);
}

IoResult SocketStream::write(const iovec* pieces, int count) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = static_cast<size_t>(count);
  return result_of(sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL), false);
}

void SocketStream::shut() noexcept { shutdown(fd_, SHUT_RDWR); }

}  // namespace farspan::transport
