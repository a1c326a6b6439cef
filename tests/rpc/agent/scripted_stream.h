// A stream for tests: takes as many bytes as it is told, and remembers them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include <farspan/c10d/transport/transport.h>

namespace farspan::testing {

class ScriptedStream final : public transport::Stream {
 public:
  // How many bytes it takes from now on before it would block.
  void set_room(size_t room) {
    const std::lock_guard lock(*mutex_);
    room_ = room;
  }
  void add_room(size_t more) {
    const std::lock_guard lock(*mutex_);
    room_ += more;
  }
  void break_it() {
    const std::lock_guard lock(*mutex_);
    broken_ = true;
  }
  std::vector<std::byte> written() const {
    const std::lock_guard lock(*mutex_);
    return written_;
  }
  int writes() const {
    const std::lock_guard lock(*mutex_);
    return writes_;
  }

  transport::IoResult write(const iovec* pieces, int count) noexcept override {
    const std::lock_guard lock(*mutex_);
    ++writes_;
    if (broken_) return {transport::IoStatus::kClosed, 0, 0};
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      const size_t step = std::min(room_, pieces[i].iov_len);
      const auto* bytes = static_cast<const std::byte*>(pieces[i].iov_base);
      written_.insert(written_.end(), bytes, bytes + step);
      room_ -= step;
      moved += step;
    }
    if (moved == 0) return {transport::IoStatus::kWouldBlock, 0, 0};
    return {transport::IoStatus::kOk, moved, 0};
  }
  transport::IoResult read(const iovec*, int) noexcept override {
    return {transport::IoStatus::kWouldBlock, 0, 0};
  }
  int read_descriptor() const noexcept override { return -1; }
  int write_descriptor() const noexcept override { return -1; }
  void shut() noexcept override {}
  std::string describe() const override { return "scripted"; }

 private:
  // On the heap, where ThreadSanitizer sees it go: else one of the next test's at its place is it.
  const std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  size_t room_ = SIZE_MAX;
  bool broken_ = false;
  int writes_ = 0;
  std::vector<std::byte> written_;
};

}  // namespace farspan::testing
