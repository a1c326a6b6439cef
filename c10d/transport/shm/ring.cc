#include <farspan/c10d/transport/shm/ring.h>

#include <algorithm>
#include <cstring>

namespace farspan::transport {
namespace {

// How much is copied before the other side is shown it: large transfers are copied in and out at
// the same time.
constexpr size_t kStep = 32 << 10;

}  // namespace

// The capacity for what cannot be, so that the caller notices.
size_t RingWriter::room(uint64_t written) noexcept {
  const uint64_t used = written - read_seen_;
  return used > capacity_ ? capacity_ + 1 : capacity_ - static_cast<size_t>(used);
}

size_t RingWriter::write(const iovec* pieces, int count) noexcept {
  if (is_broken()) return 0;
  const uint64_t begun = state_.written.load(std::memory_order_relaxed);
  uint64_t written = begun, shown = begun;
  for (int i = 0; i < count; ++i) {
    const auto* from = static_cast<const std::byte*>(pieces[i].iov_base);
    size_t left = pieces[i].iov_len;
    while (left > 0) {
      size_t free = room(written);
      if (free < left) {
        read_seen_ = state_.read.load(std::memory_order_acquire);
        free = room(written);
      }
      if (free > capacity_) {
        broken_.store(true);
        return static_cast<size_t>(shown - begun);  // which may have been read
      }
      const size_t step = std::min({left, free, kStep});
      if (step == 0) break;
      put(written, from, step);
      written += step;
      from += step;
      left -= step;
      if (written - shown >= kStep) {
        state_.written.store(written, std::memory_order_release);
        shown = written;
      }
    }
    if (left > 0) break;
  }
  if (written != shown) state_.written.store(written, std::memory_order_release);
  return static_cast<size_t>(written - begun);
}

void RingWriter::put(uint64_t at, const std::byte* from, size_t bytes) noexcept {
  const size_t begin = static_cast<size_t>(at) & (capacity_ - 1);
  const size_t first = std::min(bytes, capacity_ - begin);
  std::memcpy(bytes_ + begin, from, first);
  if (bytes > first) std::memcpy(bytes_, from + first, bytes - first);
}

bool RingWriter::has_room() const noexcept {
  const uint64_t used = state_.written.load() - state_.read.load();
  return used < capacity_;
}

// Both sides change the mark, so one of the two is first: the writer then shows the reader the
// bytes that came before, or sees that it waits. (A fence would do, too, and cost the same; but
// ThreadSanitizer knows none.)
bool RingWriter::is_reader_to_be_woken() noexcept {
  return state_.reader_waits.fetch_add(0, std::memory_order_acq_rel) != 0 &&
         state_.reader_waits.exchange(0, std::memory_order_acq_rel) != 0;
}

bool RingWriter::wait_for_room() noexcept {
  state_.writer_waits.exchange(1, std::memory_order_acq_rel);
  const uint64_t used = state_.written.load() - state_.read.load();
  return used > capacity_ / 2;
}

size_t RingReader::read(const iovec* places, int count) noexcept {
  if (is_broken()) return 0;
  const uint64_t begun = state_.read.load(std::memory_order_relaxed);
  uint64_t read = begun, told = begun;
  uint64_t written = state_.written.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    auto* to = static_cast<std::byte*>(places[i].iov_base);
    size_t left = places[i].iov_len;
    while (left > 0) {
      if (read == written) written = state_.written.load(std::memory_order_acquire);
      if (written - read > capacity_) {
        broken_.store(true);
        return 0;
      }
      const size_t step = std::min({left, static_cast<size_t>(written - read), kStep});
      if (step == 0) break;
      get(read, to, step);
      read += step;
      to += step;
      left -= step;
      if (read - told >= kStep) {
        state_.read.store(read, std::memory_order_release);
        told = read;
      }
    }
    if (left > 0) break;
  }
  if (read != told) state_.read.store(read, std::memory_order_release);
  return static_cast<size_t>(read - begun);
}

void RingReader::get(uint64_t at, std::byte* to, size_t bytes) const noexcept {
  const size_t begin = static_cast<size_t>(at) & (capacity_ - 1);
  const size_t first = std::min(bytes, capacity_ - begin);
  std::memcpy(to, bytes_ + begin, first);
  if (bytes > first) std::memcpy(to + first, bytes_, bytes - first);
}

bool RingReader::has_bytes() const noexcept { return state_.written.load() != state_.read.load(); }

bool RingReader::is_writer_to_be_woken() noexcept {
  if (state_.writer_waits.fetch_add(0, std::memory_order_acq_rel) == 0) return false;
  const uint64_t used = state_.written.load() - state_.read.load();
  return used <= capacity_ / 2 && state_.writer_waits.exchange(0, std::memory_order_acq_rel) != 0;
}

bool RingReader::wait_for_bytes() noexcept {
  state_.reader_waits.exchange(1, std::memory_order_acq_rel);
  return !has_bytes();
}

}  // namespace farspan::transport
