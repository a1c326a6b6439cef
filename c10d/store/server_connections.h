// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What the clients of stores' servers have in common: a few connections that are kept, patience
// while the server is not there yet, and care for values that are taken from queues.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist {

// What only tests have a reason to change.
struct ServerTimes {
  Millis look{2'000};       // a waiter looks so often without being told
  Millis pop_grace{5'000};  // for a value that is under way to a pop at its deadline
};

// Connections that no call is using; the last used is taken first, and few are kept.
//
// Threading: any thread. A connection that was taken belongs to the thread that took it.
template <class Connection>
class IdleConnections {
 public:
  // Null when there is none that is still good.
  std::unique_ptr<Connection> take() {
    MutexLock lock(mutex_);
    while (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      if (connection->is_idle()) return connection;  // else its server has ended
    }
    return nullptr;
  }

  void keep(std::unique_ptr<Connection> connection) {
    MutexLock lock(mutex_);
    if (idle_.size() < kKept) idle_.push_back(std::move(connection));
  }

 private:
  static constexpr size_t kKept = 4;
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ FARSPAN_GUARDED_BY(mutex_);
};

// Pauses between attempts: they double, with jitter, so that clients that start together do not
// knock together for ever.
//
// Threading: one thread.
class Pauses {
 public:
  Pauses(Millis first, Millis longest) : next_(first), longest_(longest) {}

  // Sleeps, at most until the deadline.
  void pause(Deadline deadline) {
    const auto length = Micros(next_) * (500 + random_() % 1000) / 1000;
    std::this_thread::sleep_for(std::min<Clock::duration>(length, deadline.remaining()));
    next_ = std::min(next_ * 2, longest_);
  }

 private:
  Millis next_;
  const Millis longest_;
  std::minstd_rand random_{std::random_device{}()};
};

// What to do about a server ("the Redis server") that does not answer.
inline Error advise_about(const std::string& server, Error error) {
  if (!error.advice().empty()) return error;
  if (error.code() == Code::kDisconnected) {
    error.advice(server + " has ended, or has closed the connection: its log says why");
  } else if (error.code() == Code::kTimeout) {
    error.advice(server + " is stuck or cannot be reached");
  } else if (error.code() == Code::kUnavailable) {
    error.advice("is " + server + " running?");
  }
  return error;
}

// Of something else than the server that is expected there.
inline Error not_the_server(const std::string& why) {
  return Error(Code::kCorrupt, why).advice("is there something else at this host and port?");
}

// Nothing was asked, since there was no time left for it.
inline Error out_of_time() {
  return Error(Code::kTimeout, "the time was over before the server could be asked")
      .advice("allow more time, or look at what keeps the server or this process busy");
}

// By when the answer to a pop must be here. The server takes the value when it reads the request,
// and a caller that has gone by then has lost it.
inline Deadline answer_by(Deadline deadline, const ServerTimes& times) {
  const Deadline grace = Deadline::after(times.pop_grace);
  return deadline.at() < grace.at() ? grace : deadline;
}

// An error of a pop that the server may have done.
inline Error may_have_taken(const Error& error) {
  if (error.code() != Code::kTimeout && error.code() != Code::kDisconnected) return error;
  return Error(error.code(), error.message() + "; a value that it has taken is lost")
      .advice(error.advice());
}

// What is waited for, as long as it is not there.
struct Awaited {
  std::string address;
  const char* advice;  // when the time is over
  // Somebody who does nothing but close connections for so long is another; absent: may be the one.
  std::optional<Millis> stranger = Millis{3'000};
  Millis quiet{5'000};  // then the log says that it is waited for
};

// Calls `attempt(deadline of this one)` until the server is there. What a server refuses is thrown
// at once. After some seconds the log says why this process still waits.
//   throws  Error kUnavailable with the advice, when nobody was there until the deadline; kCorrupt
template <class Attempt>
void keep_trying(Deadline deadline, const Awaited& server, Attempt attempt) {
  // Somebody may accept and never answer, and a name service be silent.
  constexpr std::chrono::seconds kShortestAttempt{1}, kLongestAttempt{30}, kTellAgain{60};
  const TimePoint start = Clock::now();
  Deadline tell = Deadline::after(server.quiet);
  std::string last;   // what went wrong, but not that the time is over
  Deadline patience;  // with who closes every connection; never, while nobody does
  for (Pauses pauses(Millis{10}, Millis{1'000});; pauses.pause(deadline)) {
    const TimePoint begun = Clock::now();
    const Deadline own = Deadline::after(
        std::clamp<Clock::duration>(tell.remaining(), kShortestAttempt, kLongestAttempt));
    try {
      attempt(earlier(deadline, own));
      return;
    } catch (const Error& error) {
      const bool again = error.code() == Code::kUnavailable ||
                         error.code() == Code::kDisconnected || error.code() == Code::kTimeout;
      if (!again) throw;
      const bool is_cut_short = error.code() == Code::kTimeout && deadline.at() < own.at();
      if (last.empty() || !is_cut_short) last = error.message();
      // Not when it was the server itself that said why.
      const bool closes =
          error.code() == Code::kDisconnected && last.find(" says: ") == std::string::npos;
      if (!closes || !server.stranger) {
        patience = Deadline::never();
      } else if (patience.is_never()) {
        patience = Deadline(begun + *server.stranger);
      }
      if (patience.expired()) {
        throw not_the_server("somebody is there, but answers nothing: " + last);
      }
      if (deadline.expired()) {
        throw Error(Code::kUnavailable, "no store there; the last attempt: " + last)
            .advice(server.advice);
      }
    }
    if (!tell.expired()) continue;
    log(LogLevel::kWarning, "store",
        "for " + farspan::describe(Clock::now() - start) + " no store at " + server.address + ": " +
            last);
    tell = Deadline::after(kTellAgain);
  }
}

}  // namespace farspan::dist
