#include <farspan/c10d/backends/cpu/post/pull.h>

#include <algorithm>
#include <cerrno>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/process_memory.h>

namespace farspan::dist::cpu {
namespace {

constexpr uint64_t kPieceBytes = 128 << 10;
constexpr uint64_t kLargeBytes = 2 << 20;

}  // namespace

Pull::Pull(std::shared_ptr<Line> of_sender, uint64_t number, const Origin& origin,
           std::shared_ptr<Filling> to)
    : line(std::move(of_sender)),
      offer(number),
      filling(std::move(to)),
      origin_(origin),
      pieces_(std::max<uint64_t>((filling->size() + kPieceBytes - 1) / kPieceBytes, 1)) {}

bool Pull::is_large() const noexcept { return filling->size() >= kLargeBytes; }

std::optional<bool> Pull::run(Deadline deadline) noexcept {
  while (!deadline.expired()) {
    const uint64_t piece = next_.fetch_add(1);
    if (piece >= pieces_) return std::nullopt;
    // After the first that fails the others are only counted.
    if (error_ == 0) read_piece(piece * kPieceBytes);
    if (done_.fetch_add(1) + 1 == pieces_) return does_mark_stand();
  }
  return std::nullopt;
}

void Pull::read_piece(uint64_t begin) noexcept {
  const uint64_t bytes = std::min(kPieceBytes, filling->size() - begin);
  const int error = filling->write_at(begin, [&](std::byte* place) {
    if (!place || bytes == 0) return 0;
    return net::read_process_memory(line->attachable(), origin_.address + begin, place, bytes);
  });
  if (error != 0) error_ = error;
}

bool Pull::does_mark_stand() noexcept {
  uint64_t mark = 0;
  if (error_ == 0) {
    error_ = net::read_process_memory(line->attachable(), origin_.mark_address, &mark, sizeof mark);
  }
  if (error_ == 0) return mark == origin_.mark;
  if (error_ == EPERM || error_ == ENOSYS) line->forbid_attach(error_);
  return false;
}

}  // namespace farspan::dist::cpu
