// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What an RRefProtocol remembers: the values that live here, the handles here to values elsewhere,
// and for each other worker what it holds of ours and what is on its way to it. PROTOCOL.md,
// "Tables".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/rref/id.h>
#include <farspan/rref/protocol_link.h>
#include <farspan/rref/protocol_outbox.h>
#include <farspan/rref/protocol_serials.h>
#include <farspan/rref/protocol_timers.h>

namespace farspan::rref {

struct Timer {
  enum class Kind { kRetry, kProbe, kLease, kNotice, kReclaim, kSettle, kForget, kWait, kDrain };
  Kind kind{};
  WorkerRun run{};  // whose; for all but kWait and kDrain
  ForkId fork{};    // kSettle, kForget
  WaitId wait = 0;  // kWait
};
using Timers = TimerQueue<Timer>;

// A value that lives here.
struct OwnerRecord {
  enum class State {
    kUnborn,   // handles came before the request to make it
    kPending,  // being made
    kReady,
    kFailed,  // could not be made; `failure` says why
  };
  RRefId id;
  State state = State::kUnborn;
  bool born = false;   // the table of values knows it: its release is an action
  uint32_t forks = 0;  // entries of Peer::held that point here
  uint32_t local = 0;  // handles here, with those that this worker passes to itself
  std::shared_ptr<const std::string> what;
  std::optional<Error> failure;
  std::vector<WaitId> waits;
};

// A handle here to a value elsewhere.
struct UserRecord {
  enum class State {
    kCreating,   // the request to make the value has not been answered
    kAsking,     // the owner has been asked to count this fork
    kConfirmed,  // it does
    kFailed,     // `failure` says why
  };
  HandleId id;
  State state = State::kAsking;
  bool creator = false;   // the fork came with the request to make the value
  bool deleted = false;   // the owner has been told that it is gone, or does not count it
  uint32_t refs = 0;      // handles that the program holds
  uint32_t children = 0;  // entries of Peer::children that point here
  uint64_t request = 0;   // of kAsking: the number of the kForkRequest on the owner's link
  std::shared_ptr<const std::string> what;
  std::optional<Error> failure;
  std::vector<WaitId> waits;
};

// A fork made here for another worker, which has not accepted it.
struct Child {
  enum class Stage {
    kCarried,   // its carrier has not ended
    kSettling,  // it has; a timer limits how long
    kRecalled,  // the receiver has been asked whether it has it
    kHeld,      // it has, and will accept it
  };
  RRefId rref;
  ForkId parent;  // the UserRecord that stays for it; none: the value is here
  Stage stage = Stage::kCarried;
  Timers::Key timer{};
};

// One run of another worker; or this one, with nothing but `children`.
struct Peer {
  enum class Standing {
    kHeardOf,  // named by others, not yet met
    kLive,
    kLost,  // out of reach: its lease runs
    kDead,  // for good
  };
  explicit Peer(WorkerRun of, size_t window)
      : run(of), name("rank " + std::to_string(of.rank)), link(window) {}

  const WorkerRun run;
  std::string name;
  Standing standing = Standing::kHeardOf;
  bool gone() const noexcept { return standing == Standing::kLost || standing == Standing::kDead; }

  Link link;
  bool dirty = false;      // in RRefProtocol::dirty_
  bool fence_due = false;  // it may not know that it is dead here
  bool probe_due = false;
  Clock::duration retry_delay{}, probe_delay{}, notice_delay{};
  Timers::Key retry{}, probe{}, lease{}, notice{}, reclaim{};

  std::unordered_map<ForkId, OwnerRecord*> held;  // its handles to values here
  SerialSet created;                              // its requests to create that came, or never will
  std::unordered_set<RRefId> unborn;              // the unborn values that it is to create
  std::unordered_set<WaitId> parked;              // its waits for values here

  uint64_t creations = 0;  // ours at it: the last serial
  std::unordered_map<ForkId, Child> children;
  std::unordered_map<ForkId, Timers::Key> taken_back;  // forks that it took back
};

struct Wait {
  enum class Kind { kConfirmed, kValue };
  Kind kind{};
  RRefId rref;          // the (first) reference waited for
  WorkerRun requester;  // of kValue
  size_t missing = 0;
  TimePoint begun{};
  Timers::Key timer{};
};

// Types and places as text, each kept once.
class Texts {
 public:
  std::shared_ptr<const std::string> keep(std::string_view text) {
    const std::string key(text.substr(0, kLongest));
    const auto it = texts_.find(key);
    if (it != texts_.end()) return it->second;
    auto kept = std::make_shared<const std::string>(key);
    if (texts_.size() < kMost) texts_.emplace(key, kept);
    return kept;
  }

 private:
  static constexpr size_t kMost = 1024, kLongest = 512;
  std::unordered_map<std::string, std::shared_ptr<const std::string>> texts_;
};

}  // namespace farspan::rref
