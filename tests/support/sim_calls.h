// Calls between the workers of a SimNetwork, at the level of frames.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>

#include "support/agents.h"
#include "support/sim_network.h"

namespace farspan::testing {

using Answered = Future<wire::InFrame>;

// A request that carries `value`.
inline Answered send_call(SimNetwork& net, const std::string& from, const std::string& to,
                          uint64_t value = 1, Deadline deadline = Deadline::never(),
                          wire::Kind kind = wire::Kind::kCall) {
  auto answer = std::make_shared<Answer>();
  auto future = answer->future();
  wire::OutFrame frame;
  frame.header.kind = kind;
  frame.header.chain = agent::current_call().chain;
  const Buffer meta = words(1, value);
  frame.meta = meta.span();
  net.at(from)->call(net.rank_of(to), frame, deadline, std::move(answer), false);
  return future;
}

inline void send_post(SimNetwork& net, const std::string& from, const std::string& to,
                      uint64_t value, wire::Kind kind = wire::Kind::kRRefControl) {
  wire::OutFrame frame;
  frame.header.kind = kind;
  const Buffer meta = words(1, value);
  frame.meta = meta.span();
  net.at(from)->post(net.rank_of(to), frame);
}

// The code of a call that has failed; kOk for one that was answered.
inline Code code_of(const Answered& answered) {
  if (!answered.ready()) return Code::kUnknown;
  return answered.has_error() ? answered.error().code() : Code::kOk;
}
inline uint64_t value_of(const Answered& answered) { return word_at(answered.value().meta, 0); }

// Answers calls with what they carry, and keeps it.
class Echo {
 public:
  Echo(SimNetwork& net, const std::string& name, wire::Kind kind = wire::Kind::kCall,
       agent::Messenger::Run run = agent::Messenger::Run::kAsTask) {
    net.at(name)->handle(kind, run, [heard = heard_](agent::Request request) {
      const wire::InFrame frame = request.frame();
      heard->push_back(word_at(frame.meta, 0));
      request.reply(frame.meta.span(), frame.segments);
    });
  }
  const std::vector<uint64_t>& heard() const { return *heard_; }

 private:
  const std::shared_ptr<std::vector<uint64_t>> heard_ = std::make_shared<std::vector<uint64_t>>();
};

}  // namespace farspan::testing
