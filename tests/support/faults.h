// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Faults: what goes wrong with frames on their way, by script or by chance.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/rpc/wire/kinds.h>

#include "support/seeded_random.h"

namespace farspan::testing {

inline constexpr int kAlways = std::numeric_limits<int>::max();
// For the first argument of Faults' methods.
inline constexpr std::optional<wire::Kind> kAnyKind = std::nullopt;

// Which frames a fault hits, beside their kind. `from` sends the frame: for a reply, the worker
// that was asked.
struct Match {
  std::string from = {}, to = {};  // empty: any worker
  int nth = 1;                     // begins with the nth frame that fits: 1, 2, ...
  int times = kAlways;             // ends after so many hits
  double probability = 1;          // of each hit; the World's seed decides
};

// What a lost frame costs. While it lives a real connection loses nothing, so the first two stand
// for what is seen above it: a worker that never answers, and a call that was cut off.
enum class Loss {
  kSilent,      // nobody is told; a call ends at its deadline
  kFailsCall,   // the call gets kDisconnected, the line stays as it is
  kBreaksLine,  // the connection ends with it: break_line()
};

// Rules are asked in the order of their making; each frame suffers all that hit it.
//
// Threading: the World's.
class Faults {
 public:
  using Id = size_t;

  // Requests and one-way messages.
  Id drop(std::optional<wire::Kind> kind, Match match = {}, Loss loss = Loss::kSilent);
  Id duplicate(std::optional<wire::Kind> kind, Match match = {}, Micros copy_after = Micros(0));
  // What is behind it on the same line waits, too.
  Id delay(std::optional<wire::Kind> kind, Micros by, Match match = {});
  // The caller gets kDisconnected at once, the request still arrives, after `arrives_after`: a
  // retry meets a first copy that is being worked on.
  Id fail_in_flight(std::optional<wire::Kind> kind, Match match = {},
                    Micros arrives_after = Micros(0));

  // Answers. `kind` is that of the request.
  Id drop_reply(std::optional<wire::Kind> kind, Match match = {}, Loss loss = Loss::kSilent);
  Id duplicate_reply(std::optional<wire::Kind> kind, Match match = {},
                     Micros copy_after = Micros(0));
  Id delay_reply(std::optional<wire::Kind> kind, Micros by, Match match = {});

  void remove(Id id);
  void clear();  // removes all
  // How often the fault has struck.
  int hits(Id id) const { return rules_.at(id).hits; }
  std::string describe() const;

  // A frame that is about to be sent, and what becomes of it.
  struct Passing {
    wire::Kind kind;
    bool reply;
    const std::string& from;
    const std::string& to;
  };
  struct Verdict {
    std::optional<Loss> loss;
    bool fails_call = false;
    Micros delay{0};
    std::vector<Micros> copies;  // each that long after the original
  };
  Verdict judge(const Passing& frame, SeededRandom& random);

 private:
  enum class Type { kDrop, kDuplicate, kDelay, kFailInFlight };
  struct Rule {
    Type type;
    bool reply;
    std::optional<wire::Kind> kind;
    Match match;
    Loss loss = Loss::kSilent;
    Micros time{0};
    int seen = 0, hits = 0;
    bool removed = false;
  };
  Id add(Rule rule);
  static bool strikes(Rule& rule, const Passing& frame, SeededRandom& random);

  std::vector<Rule> rules_;
};

}  // namespace farspan::testing
