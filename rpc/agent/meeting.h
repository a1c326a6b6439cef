// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Meeting: how workers agree that all are done and nothing is under way, as a state machine without
// I/O. Rank 0 leads: it asks in rounds for what each has sent and received, until two rounds in a
// row say the same and the sums agree.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include <farspan/c10d/base/error.h>

namespace farspan::agent {

struct MeetingMessage {
  enum class Type : uint64_t { kAsk = 1, kReport = 2, kDone = 3 };
  Type type = Type::kAsk;
  uint64_t phase = 0;  // which meeting of the job's life
  uint64_t round = 0;
  uint64_t sent = 0;  // requests, since the worker began
  uint64_t received = 0;
};

// Threading: one thread at a time; the caller performs what the methods return.
class Meeting {
 public:
  struct Action {
    struct Send {
      int to;
      MeetingMessage message;
    };
    std::vector<Send> sends;
    bool report_when_quiet = false;  // call quiet() once no call of this worker is under way
    bool pause = false;              // but first let some of what is under way arrive
    bool done = false;               // the meeting is over
    std::optional<Error> failure;    // it cannot end
  };

  Meeting(int self, int world_size);

  // This worker has come to meeting number `phase`: 1, 2, ...
  Action enter(uint64_t phase);
  // No call of this worker is under way; what it has sent and received so far.
  Action quiet(uint64_t sent, uint64_t received);
  Action on_message(int from, const MeetingMessage& message);
  Action on_lost(int rank);

  // At the leader: who has not reported in this round.
  std::vector<int> missing() const;

 private:
  Action report(uint64_t sent, uint64_t received);
  void note_report(int from, const MeetingMessage& message);
  Action conclude_round();

  const int self_;
  const int world_size_;
  uint64_t phase_ = 0;  // entered
  uint64_t round_ = 0;  // asked for
  bool reporting_ = false;
  bool done_ = false;
  std::set<int> lost_;      // since the first meeting
  bool some_lost_ = false;  // ever

  // The leader's.
  struct Report {
    uint64_t phase = 0, round = 0, sent = 0, received = 0;
  };
  std::vector<Report> reports_;
  std::optional<Report> last_sums_;
};

}  // namespace farspan::agent
