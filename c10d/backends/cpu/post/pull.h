// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Pull: a message that its receiver reads out of the sender's memory (cross-memory attach).
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include <farspan/c10d/backends/cpu/post/letter.h>
#include <farspan/c10d/backends/cpu/post/line.h>
#include <farspan/c10d/backends/cpu/post/sending.h>

namespace farspan::dist::cpu {

// How it has ended.
enum class Pulled {
  kTaken,      // the sender needs its memory no more; whoever received may have given up meanwhile
  kWithdrawn,  // the sender gave up, so what was read may be anything; it says so itself
  kForbidden,  // the bytes must be asked for
};

// The sender's mark is looked at when all has been read: it goes before the memory can change.
//
// Threading: run() from any thread, and from several at once, which share the pieces out.
class Pull {
 public:
  Pull(std::shared_ptr<Line> line, uint64_t offer, const Origin& origin,
       std::shared_ptr<Filling> filling);

  const std::shared_ptr<Line> line;  // of the sender, with line->attachable()
  const uint64_t offer;
  const std::shared_ptr<Filling> filling;

  // Whether it is worth a second thread's time.
  bool is_large() const noexcept;

  // Reads until no piece is left; returns how it has ended to the thread that reads the last one,
  // and to no other.
  std::optional<Pulled> run() noexcept;

 private:
  void read_piece(uint64_t begin) noexcept;
  Pulled look_at_mark() noexcept;

  const Origin origin_;
  const uint64_t pieces_;
  std::atomic<uint64_t> next_{0}, done_{0};
  std::atomic<int> error_{0};
};

}  // namespace farspan::dist::cpu
