// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What goes into an RRefProtocol beside events, and what comes out of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rref/protocol_messages.h>

namespace farspan::rref {

struct ProtocolOptions {
  WorkerRun self;
  // How long a worker that is out of reach keeps what it holds here, and may come back to it.
  Millis lease{30'000};
  // How long a fork may be under way after its carrier has ended; for that long, too, the forks of
  // a dead worker still count, so that those it passed on can be registered.
  Millis fork_timeout{30'000};
  // The longest that wait_confirmed() waits for an owner.
  Millis confirm_timeout{60'000};
  // Control frames are repeated after this, then after twice as long, and so on up to the second.
  Millis first_retry{200}, last_retry{5'000};
  // Items under way to one worker, and in one frame.
  size_t window = 1024;
};

using WaitId = uint64_t;

// The end of one wait_confirmed() or wait_value().
struct WaitResult {
  WaitId id = 0;
  std::optional<Error> error;  // none: confirmed; the value is there
};

// Something that was still there when drain() gave up.
struct Leak {
  enum class Kind { kOwned, kUsed, kPassedOn };
  Kind kind{};
  RRefId rref;
  std::string what;
  // kOwned: whose handles keep it, one entry for each. kUsed: the owner. kPassedOn: to whom.
  std::vector<WorkerRun> others;
  size_t local_handles = 0;
};
// "rref 0/17@2, std::shared_ptr<Net> made by remote(make_net): kept by handles on rank 1 (2), ..."
std::string describe(const Leak& leak);

struct DrainReport {
  bool clean = false;  // nothing is left anywhere, and every worker in reach knows it
  size_t leak_count = 0;
  std::vector<Leak> leaks;  // the first kMostLeaks of them
  size_t unheard = 0;       // control items that were not acknowledged
  Clock::duration elapsed{};
  static constexpr size_t kMostLeaks = 100;
};

// What to do now. Everything in it is to be done outside of the lock that serialises the protocol.
struct Outbox {
  std::vector<ControlFrame> frames;  // send each to its `to`; may be lost
  std::vector<RRefId> releases;      // destroy these values: user code may run, handles may drop
  std::vector<WaitResult> results;
  std::optional<DrainReport> drained;  // once, at the end of drain()
  Deadline wake_at;                    // call on_timer() then; it replaces the earlier one
};

struct Counters {
  size_t owned = 0;             // values that live here, or are being made
  size_t unborn = 0;            // of these: known from handles, the request to make them is to come
  size_t forks = 0;             // handles of others that keep them
  size_t users = 0;             // handles here to values elsewhere
  size_t pending_users = 0;     // of these: not yet confirmed by the owner
  size_t pending_children = 0;  // forks passed on that have not been accepted
  size_t waits = 0;
  size_t unacknowledged = 0;   // control items that wait for their acknowledgement
  size_t taken_back = 0;       // forks that are remembered so that they are refused when they come
  size_t rejected_frames = 0;  // for another run, or against the rules; since the start
  size_t timers = 0;
};

}  // namespace farspan::rref
