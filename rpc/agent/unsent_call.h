// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// UnsentCall: a call that a line had taken, and nothing of which has left: for another line.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/agent/outbox.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

struct UnsentCall {
  wire::OutFrame frame;
  Buffer head;  // where its meta lies
  Deadline deadline;
  std::shared_ptr<ReplyHandler> handler;
};

// The request as it was before the line took it, without a deadline and a handler.
//   offered  its segments that were offered, in their order
//   returns  nothing where it lent something, which has gone with the line, or its offer was
//            withdrawn
std::optional<UnsentCall> as_before(const Outbox::Unsent& request, std::span<const Buffer> offered);

}  // namespace farspan::agent
