// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The codec of what workers tell each other about references: rref.capnp and back.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <farspan/rref/id.h>
#include <farspan/rref/protocol_messages.h>

namespace farspan::rref {

// What a request about references is about.
struct Subject {
  std::optional<ForkData> made;  // the reference that it is to make
  std::optional<RRefId> self;    // the value that a method runs on, or that is fetched
  // Where what is fetched is to arrive, as DeviceTensors has it; none: where the device map says.
  std::optional<int> place{};
};

std::vector<std::byte> encode(const ForkData& data);
std::vector<std::byte> encode(const Subject& subject);
std::vector<std::byte> encode(const ControlFrame& frame);

//   throws  Error kCorrupt
ForkData decode_fork(std::span<const std::byte> bytes);
Subject decode_subject(std::span<const std::byte> bytes);
ControlFrame decode_control(std::span<const std::byte> bytes);

}  // namespace farspan::rref
