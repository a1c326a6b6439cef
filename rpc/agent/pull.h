// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Pull: the offered segments of one frame, read out of the sender's memory; but those that were
// handed over.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// Threading: run() by one thread, help() by others meanwhile or later; they share the pieces out.
// The one begins at the front and the others at the back, since the system locks two mebibytes of
// the sender's memory at a time.
class Pull {
 public:
  // Called once, when nobody reads any more, by the thread that comes last.
  //   error  0: the segments are what was offered; ESTALE: the sender has withdrawn them; else the
  //          errno of reading
  using OnEnd = std::function<void(wire::InFrame frame, int error)>;

  //   patience  for how long run() may poll for what the others have begun
  Pull(pid_t process, wire::InFrame frame, std::chrono::microseconds patience, OnEnd on_end);

  // Whether reading what the frame offers takes so long that the end of a lease may fall into it.
  static bool is_long(const wire::InFrame& frame) noexcept;

  struct Polled {
    Clock::duration took{};
    bool in_vain = false;  // others still read
  };
  //   call_helper  has help() called by another thread, where it is worth waking one; none: alone
  //   returns      how it has polled for the others; nothing: it has not
  std::optional<Polled> run(const std::function<void()>& call_helper = nullptr);
  void help();

 private:
  struct Piece {
    uint64_t from;
    std::byte* to;
    size_t bytes;
  };
  bool is_large() const noexcept;
  void read_from(bool front);
  void read(const Piece& piece) noexcept;
  int look_at_mark() const noexcept;
  std::optional<Polled> poll_for_others() const noexcept;
  void leave();

  const pid_t process_;
  wire::InFrame frame_;
  const std::chrono::microseconds patience_;
  const OnEnd on_end_;
  const size_t bytes_;  // of all pieces
  std::vector<Piece> pieces_;
  std::atomic<size_t> begun_{0}, from_front_{0}, from_back_{0};  // pieces
  std::atomic<size_t> left_;  // pieces that are not read, and one for run()
  std::atomic<int> error_{0};
  std::atomic<int> processor_{-1};  // that run() was last seen on
  std::atomic<bool> is_helped_{false};
};

}  // namespace farspan::agent
