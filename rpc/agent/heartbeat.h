// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Heartbeat: finds out, as a state machine without I/O or a clock, that the worker at the other end
// of a line is gone without a word: its host is down, or it stands still.
#pragma once

#include <cstdint>
#include <optional>

#include <farspan/c10d/base/time.h>

namespace farspan::agent {

// Only what waits without a deadline needs it: calls, and whoever holds a Connection::Watch. All
// else ends by itself. As long as one waits, it looks four times within the timeout whether
// anything has passed on the line. When nothing has, it asks for a sign of life; when three in a
// row stay without an answer, the line is lost. It counts looks, not time, so that a process that
// stood still itself does not blame the other one for it.
//
// A worker that is busy answers, since what comes in is always read (c10d/net/README.md): only one
// that does not run at all is lost.
//
// Threading: one thread at a time.
class Heartbeat {
 public:
  // What has passed on the line since it was made.
  struct Traffic {
    uint64_t received = 0;  // bytes
    uint64_t sent = 0;
    bool sending = false;  // more waits to be sent: then what leaves shows that the other end reads
  };
  struct Action {
    bool ping = false;  // send one
    bool lost = false;  // close the line
    std::optional<TimePoint> look_at;
  };

  //   timeout  how long nothing may be heard; kNoTimeout: for ever
  explicit Heartbeat(Millis timeout) noexcept : timeout_(timeout) {}

  Millis timeout() const noexcept { return timeout_; }
  // Somebody waits without a deadline from now on.
  Action begin(TimePoint now, const Traffic& traffic) noexcept;
  // At the time that the last action named.
  //   waiting  whether anybody still does; if not, begin() starts anew
  Action look(TimePoint now, const Traffic& traffic, bool waiting) noexcept;

 private:
  static constexpr int kPings = 3;

  TimePoint next(TimePoint now) const noexcept;

  const Millis timeout_;
  Traffic last_;
  int unanswered_ = 0;
};

}  // namespace farspan::agent
