// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a PassProtocol keeps for one pass.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <farspan/autograd/pass_protocol.h>

namespace farspan::dist_autograd {

struct Pass {
  // A walk under way, or done and waiting for the answers to the questions that it caused.
  struct OpenWalk {
    int asker = kRoots;
    uint64_t question = 0;    // the asker's
    size_t unanswered = 0;    // questions caused
    std::set<int> workers{};  // that the answers so far have named
  };
  struct Asked {
    uint64_t token;  // of the walk that caused the question
    int peer;
  };
  static constexpr int kRoots = -1;

  PassId id;
  PassTerms terms;
  TimePoint deadline = TimePoint::max();
  bool running = false;   // gradients flow here
  bool finished = false;  // the executor has; only the initiator lives on after that

  std::set<int> neighbours;            // workers that may know the pass from us, or we from them
  std::map<uint64_t, OpenWalk> walks;  // by token
  std::map<uint64_t, Asked> asked;     // by id, questions without an answer
  std::set<std::pair<int, uint64_t>> questions_seen;  // asker and its id
  std::map<SendId, int> to_come;                      // gradients, and from whom
  std::map<SendId, int> to_leave;                     // gradients, and for whom
  std::set<SendId> come;
  std::vector<Crossing> kept;  // fast mode: gradients that came before the walk was done
  std::set<int> contacted;     // fast mode: workers that got gradients from us

  // The initiator's: who takes part, as far as is known, and who of them has run its part.
  std::set<int> known;
  std::set<int> done;

  bool is_overdue(TimePoint now) const { return now >= deadline; }
  bool is_exact() const { return terms.mode == PassMode::kExact; }

  // The terms as they are to be told now.
  PassTerms terms_at(TimePoint now) const;

  // Whether the pass cannot end well without that worker.
  bool needs(int rank) const;

  // "exact pass 3 of context 17, counting: waits for answers of 'a', 'b'"
  std::string describe(const std::function<std::string(int)>& name_of) const;
};

// "backward pass 3 of context 17"
std::string describe(const PassId& pass);

}  // namespace farspan::dist_autograd
