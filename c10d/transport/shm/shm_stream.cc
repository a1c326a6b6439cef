#include <farspan/c10d/transport/shm/shm_stream.h>

#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <utility>

#include <farspan/c10d/net/unix_socket.h>

namespace farspan::transport {

// Zeroes at first, which is how rings begin.
struct ShmLayout {
  RingState rings[2];
  alignas(64) std::atomic<uint32_t> closed;  // by either side
  alignas(64) std::byte bytes[2][ShmParts::kRingBytes];
};

size_t ShmParts::memory_bytes() noexcept { return sizeof(ShmLayout); }

ShmParts ShmParts::create() { return {net::SharedMemory::create(memory_bytes()), {}}; }

ShmStream::ShmStream(net::OwnedDescriptor socket, ShmParts parts, ShmParts::Side side,
                     std::string description)
    : socket_(std::move(socket)),
      memory_(std::move(parts.memory)),
      room_(std::move(parts.room[side])),
      their_room_(std::move(parts.room[1 - side])),
      layout_(*std::launder(reinterpret_cast<ShmLayout*>(memory_.data()))),
      in_(layout_.rings[1 - side], layout_.bytes[1 - side], ShmParts::kRingBytes),
      out_(layout_.rings[side], layout_.bytes[side], ShmParts::kRingBytes),
      description_(std::move(description)) {
  memory_.close_descriptor();
}

bool ShmStream::is_closed() const noexcept {
  return gone_.load(std::memory_order_acquire) ||
         layout_.closed.load(std::memory_order_acquire) != 0;
}

// They say only that there is something to look for; none at all, that there is nobody any more.
void ShmStream::take_signals() noexcept {
  in_.wait_no_more();
  std::byte signals[64];
  ssize_t got = 0;
  do {
    got = recv(socket_.get(), signals, sizeof signals, MSG_DONTWAIT);
  } while (got == sizeof signals || (got < 0 && errno == EINTR));
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) gone_.store(true);
}

IoResult ShmStream::read(const iovec* places, int count) noexcept {
  if (signalled_.load(std::memory_order_relaxed) && signalled_.exchange(false)) take_signals();
  const bool ends = is_closed();  // before the look at what was written before the end
  const size_t moved = in_.read(places, count);
  if (moved > 0) {
    if (in_.is_writer_to_be_woken()) their_room_.clear();
    return {IoStatus::kOk, moved, 0};
  }
  if (in_.is_broken()) return {IoStatus::kFailed, 0, EPROTO};
  return {ends ? IoStatus::kClosed : IoStatus::kWouldBlock, 0, 0};
}

IoResult ShmStream::write(const iovec* pieces, int count) noexcept {
  if (is_closed()) return {IoStatus::kClosed, 0, EPIPE};
  const size_t moved = out_.write(pieces, count);
  if (moved > 0) {
    const std::byte signal{};
    if (out_.is_reader_to_be_woken() &&
        send(socket_.get(), &signal, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) {
      shut();  // who cannot be woken must not wait; a socket that is full wakes by itself
    }
    return {IoStatus::kOk, moved, 0};
  }
  if (out_.is_broken()) return {IoStatus::kFailed, 0, EPROTO};
  return {IoStatus::kWouldBlock, 0, 0};
}

bool ShmStream::expect_input() noexcept {
  signalled_.store(true);
  return in_.wait_for_bytes() && !is_closed();
}

bool ShmStream::expect_room() noexcept {
  room_.make_unwritable();
  if (out_.wait_for_room() && !is_closed()) return true;
  room_.clear();
  return false;
}

void ShmStream::shut() noexcept {
  layout_.closed.store(1, std::memory_order_release);
  room_.clear();
  their_room_.clear();
  shutdown(socket_.get(), SHUT_RDWR);
}

pid_t ShmStream::peer_process() const noexcept { return net::peer_process(socket_.get()); }

}  // namespace farspan::transport
