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

  // Reads until no piece is left, or the deadline. The thread that reads the last piece, and no
  // other, hears how it has ended: true when the sender needs its memory no more (whoever received
  // may have given up meanwhile). False: the bytes must be asked for, since what was read may be
  // anything, or could not be read; a sender that gave up says so itself.
  std::optional<bool> run(Deadline deadline) noexcept;

 private:
  void read_piece(uint64_t begin) noexcept;
  bool does_mark_stand() noexcept;

  const Origin origin_;
  const uint64_t pieces_;
  std::atomic<uint64_t> next_{0}, done_{0};
  std::atomic<int> error_{0};
};

}  // namespace farspan::dist::cpu
