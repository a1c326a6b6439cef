// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Handshake: the first two frames of a connection, as a state machine without I/O.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/wire/frame.h>
#include <farspan/rpc/wire/messages.h>

namespace farspan::agent {

// The opener says HELLO; the accepter answers WELCOME, or REFUSE with the reason. Either side gives
// up on anything else. Exactly one of `peer` and `failure` is set at the end.
//
// Threading: one thread at a time.
class Handshake {
 public:
  // What to do now. `send` goes out first, whatever else is set.
  struct Action {
    struct Send {
      wire::Kind kind;
      Buffer meta;
    };
    std::optional<Send> send;
    std::optional<wire::Hello> peer;  // done: who is at the other end
    std::optional<Error> failure;     // over: close the connection
  };

  // Whether the accepter takes a peer that is of the right job; an Error refuses it.
  using Admit = std::function<std::optional<Error>(const wire::Hello& peer)>;

  // `expected`, `run`: who is dialled, and which run of it.
  static Handshake opener(wire::Hello mine, WorkerInfo expected, wire::InstanceId run);
  static Handshake accepter(wire::Hello mine, Admit admit);

  Action begin();
  Action on_frame(const wire::InFrame& frame);

 private:
  Handshake(wire::Hello mine, bool opens, WorkerInfo expected, wire::InstanceId run, Admit admit);
  std::optional<Error> objection_to(const wire::Hello& peer) const;
  Action answer_hello(const wire::InFrame& frame);
  Action take_welcome(const wire::InFrame& frame);

  wire::Hello mine_;
  bool opens_;
  WorkerInfo expected_;
  wire::InstanceId expected_run_;
  Admit admit_;
};

// Why a peer is not who the job's records say: another name, or another run of the worker.
std::optional<Error> objection_to_identity(const wire::Hello& peer, const WorkerInfo& known,
                                           const wire::InstanceId& known_run);

}  // namespace farspan::agent
