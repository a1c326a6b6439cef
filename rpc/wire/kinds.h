// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Kind: what a frame is. The numbers are the wire's: append only, never reuse. Each room above rpc
// has a range of its own.
#pragma once

#include <cstdint>
#include <string_view>

namespace farspan::wire {

enum class Kind : uint8_t {
  // 0x01 to 0x0f: a connection's own.
  kHello = 0x01,
  kWelcome = 0x02,
  kRefuse = 0x03,
  kPing = 0x04,
  kPong = 0x05,
  kGoodbye = 0x06,
  kTaken = 0x07,
  kAsk = 0x08,
  kBytes = 0x09,
  kReturned = 0x0a,
  kPiece = 0x0b,
  kReleased = 0x0c,
  kLineEnd = 0x0d,
  // 0x10 to 0x1f: calls.
  kCall = 0x10,
  kBuiltinCall = 0x11,
  kShutdown = 0x12,
  kDeviceProbe = 0x13,
  kDeviceUnopened = 0x14,
  kDeviceRecall = 0x15,
  // 0x20 to 0x3f: remote references.
  kRemoteCall = 0x20,
  kRRefCall = 0x21,
  kRRefFetch = 0x22,
  kRRefControl = 0x23,
  kRRefBackward = 0x24,
  // 0x40 to 0x4f: distributed autograd.
  kAutogradControl = 0x40,
  kAutogradGradient = 0x41,
  // 0x50 to 0x5f: optimizers.
  kOptimizer = 0x50,
};

constexpr std::string_view name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::kHello:
      return "hello";
    case Kind::kWelcome:
      return "welcome";
    case Kind::kRefuse:
      return "refuse";
    case Kind::kPing:
      return "ping";
    case Kind::kPong:
      return "pong";
    case Kind::kGoodbye:
      return "goodbye";
    case Kind::kTaken:
      return "taken";
    case Kind::kAsk:
      return "ask";
    case Kind::kBytes:
      return "bytes";
    case Kind::kReturned:
      return "returned";
    case Kind::kPiece:
      return "piece";
    case Kind::kReleased:
      return "released";
    case Kind::kLineEnd:
      return "line end";
    case Kind::kCall:
      return "call";
    case Kind::kBuiltinCall:
      return "builtin call";
    case Kind::kShutdown:
      return "shutdown";
    case Kind::kDeviceProbe:
      return "device probe";
    case Kind::kDeviceUnopened:
      return "device unopened";
    case Kind::kDeviceRecall:
      return "device recall";
    case Kind::kRemoteCall:
      return "remote call";
    case Kind::kRRefCall:
      return "rref call";
    case Kind::kRRefFetch:
      return "rref fetch";
    case Kind::kRRefControl:
      return "rref control";
    case Kind::kRRefBackward:
      return "rref backward";
    case Kind::kAutogradControl:
      return "autograd control";
    case Kind::kAutogradGradient:
      return "autograd gradient";
    case Kind::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

}  // namespace farspan::wire
