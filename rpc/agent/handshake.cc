#include <farspan/rpc/agent/handshake.h>

#include <algorithm>
#include <utility>

namespace farspan::agent {
namespace {

Handshake::Action failed(Error error) {
  Handshake::Action action;
  action.failure = std::move(error);
  return action;
}

}  // namespace

Handshake::Handshake(wire::Hello mine, bool opens, WorkerInfo expected, wire::InstanceId run,
                     Admit admit)
    : mine_(std::move(mine)),
      opens_(opens),
      expected_(std::move(expected)),
      expected_run_(run),
      admit_(std::move(admit)) {}

Handshake Handshake::opener(wire::Hello mine, WorkerInfo expected, wire::InstanceId run) {
  return Handshake(std::move(mine), true, std::move(expected), run, nullptr);
}

Handshake Handshake::accepter(wire::Hello mine, Admit admit) {
  return Handshake(std::move(mine), false, {}, {}, std::move(admit));
}

Handshake::Action Handshake::begin() {
  Action action;
  if (opens_) action.send = Action::Send{wire::Kind::kHello, wire::encode(mine_)};
  return action;
}

Handshake::Action Handshake::on_frame(const wire::InFrame& frame) {
  try {
    return opens_ ? take_welcome(frame) : answer_hello(frame);
  } catch (const Error& e) {
    return failed(e);
  }
}

// What is wrong with a peer, whichever side opened.
std::optional<Error> Handshake::objection_to(const wire::Hello& peer) const {
  if (std::max(peer.min_version, mine_.min_version) >
      std::min(peer.max_version, mine_.max_version)) {
    return Error(Code::kInvalidArgument, "worker '" + peer.name + "' speaks wire versions " +
                                             std::to_string(peer.min_version) + " to " +
                                             std::to_string(peer.max_version) + ", worker '" +
                                             mine_.name + "' " + std::to_string(mine_.min_version) +
                                             " to " + std::to_string(mine_.max_version))
        .advice("build both with the same farspan");
  }
  if (peer.generation != mine_.generation) {
    return Error(Code::kInvalidArgument, "worker '" + peer.name +
                                             "' belongs to another run of the job ('" +
                                             peer.generation + "', not '" + mine_.generation + "')")
        .advice("end the workers of the earlier run, or give this run another store");
  }
  return std::nullopt;
}

Handshake::Action Handshake::answer_hello(const wire::InFrame& frame) {
  if (frame.header.kind != wire::Kind::kHello) {
    return failed(Error(Code::kCorrupt, "the first frame is no hello"));
  }
  wire::Hello peer = wire::decode_hello(frame.meta.span());
  std::optional<Error> objection = objection_to(peer);
  if (!objection && admit_) objection = admit_(peer);
  Action action;
  if (objection) {
    action.send = Action::Send{wire::Kind::kRefuse, wire::encode(*objection)};
    action.failure = std::move(objection);
  } else {
    action.send = Action::Send{wire::Kind::kWelcome, wire::encode(mine_)};
    action.peer = std::move(peer);
  }
  return action;
}

Handshake::Action Handshake::take_welcome(const wire::InFrame& frame) {
  if (frame.header.kind == wire::Kind::kRefuse) {
    return failed(wire::decode_error(frame.meta.span()));
  }
  if (frame.header.kind != wire::Kind::kWelcome) {
    return failed(Error(Code::kCorrupt, "a hello was answered by something else"));
  }
  wire::Hello peer = wire::decode_hello(frame.meta.span());
  if (auto objection = objection_to(peer)) return failed(std::move(*objection));
  if (peer.rank != expected_.rank) {
    return failed(Error(Code::kInvalidArgument, "rank " + std::to_string(peer.rank) +
                                                    " answered where rank " +
                                                    std::to_string(expected_.rank) + " should be"));
  }
  if (auto objection = objection_to_identity(peer, expected_, expected_run_)) {
    return failed(std::move(*objection));
  }
  Action action;
  action.peer = std::move(peer);
  return action;
}

std::optional<Error> objection_to_identity(const wire::Hello& peer, const WorkerInfo& known,
                                           const wire::InstanceId& known_run) {
  if (peer.name != known.name) {
    return Error(Code::kInvalidArgument, "rank " + std::to_string(peer.rank) + " is called '" +
                                             peer.name + "', not '" + known.name + "'")
        .advice("start each rank of the job once");
  }
  if (!(peer.instance == known_run)) {
    return Error(Code::kInvalidArgument,
                 "worker '" + peer.name + "' was restarted; this job knows its earlier run")
        .advice("restart the whole job");
  }
  return std::nullopt;
}

}  // namespace farspan::agent
