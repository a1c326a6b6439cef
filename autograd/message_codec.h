// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The codec of what workers tell each other during backward passes: autograd.capnp and back.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <vector>

#include <farspan/autograd/pass_messages.h>
#include <farspan/c10d/values/message.h>
#include <farspan/c10d/values/value_io.h>
#include <farspan/rpc/call_scope.h>

namespace farspan::dist_autograd {

// "The context is over"; or lost, with a worker that had a part in it.
struct Release {
  ContextId context{};
  bool lost = false;
};

// Writes a message; `gradients` travel with a GradientHead only.
//   scope   for gradients on accelerators; null: there are none
//   throws  Error kInvalidArgument: a gradient that does not travel
void encode(MetaBuilder& builder, const PassMessage& message,
            const std::vector<at::Tensor>& gradients, std::vector<Buffer>& segments,
            ValueScope* scope = nullptr);
void encode(MetaBuilder& builder, const Release& release);

struct Decoded {
  std::optional<Release> release;  // one of these two
  std::optional<PassMessage> message;
  std::vector<at::Tensor> gradients;
  std::exception_ptr failure{};  // why there are none
};
// What keeps gradients from being made here, the pass must hear of: it is in `failure`.
//   scope   gets the deadline of the pass, for what gradients have to wait for
//   throws  Error kCorrupt
Decoded decode(std::span<const std::byte> meta, std::span<const Buffer> segments,
               CallScope* scope = nullptr);

// The pass that a message is about; with Release: of its context, none.
//   throws  Error kCorrupt
PassId pass_of(std::span<const std::byte> meta);

}  // namespace farspan::dist_autograd
