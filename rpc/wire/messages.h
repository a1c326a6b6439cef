// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The metadata that connections themselves exchange, as plain structs, and its codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/error.h>

namespace farspan::wire {

// 128 random bits that tell one run of a worker from the next.
struct InstanceId {
  uint64_t high = 0, low = 0;
  static InstanceId random();
  friend bool operator==(const InstanceId&, const InstanceId&) = default;
};

struct FunctionRecord {
  uint64_t id = 0;
  std::string name, signature;
};

struct Hello {
  uint8_t min_version = 1, max_version = 1;
  uint64_t features = 0;
  std::string name;
  int32_t rank = -1;
  InstanceId instance;
  std::string generation;
  int32_t pid = 0;
  std::string host;
  std::vector<FunctionRecord> functions;
  std::string authentication;
  // Where this process has `instance` in its memory: who can read it there reads its offers, too.
  uint64_t probe = 0;
  // Of the opener's: a number of this connection, which is not 0; or that of the one whose lane it
  // is to be.
  uint64_t line = 0, lane_of = 0;
};

// The meta of a frame: a whole number of 8-byte words. An Error's texts are cut at 64 KiB each.
Buffer encode(const Hello& hello);
Buffer encode(const Error& error);

//   meta    8-byte aligned
//   throws  Error kCorrupt: not such a message
Hello decode_hello(std::span<const std::byte> meta);
Error decode_error(std::span<const std::byte> meta);

}  // namespace farspan::wire
