// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Tuning: from which sizes on the cpu backend does what. The defaults were measured
// (./dev bench thresholds); all ranks go by what rank 0 has.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

namespace farspan::dist::cpu {

// In bytes, but for the last.
//
// Threading: a value.
struct Tuning {
  // Up to here the data of a collective travel with the call, within a host. At most 8 KiB.
  uint64_t small = uint64_t{8} << 10;  // FARSPAN_CPU_SMALL_BYTES
  // The same between hosts: all_reduce of this size, all_gather of this size in all.
  uint64_t hosts_small = uint64_t{16} << 10;  // FARSPAN_CPU_HOSTS_SMALL_BYTES
  // Up to here a broadcast between hosts takes a tree, above a chain.
  uint64_t tree = uint64_t{64} << 10;  // FARSPAN_CPU_TREE_BYTES
  // What is larger goes from host to host in pieces of this size, a multiple of 64.
  uint64_t piece = uint64_t{1} << 20;  // FARSPAN_CPU_PIECE_BYTES
  // Within a host a receiver reads a message of this size on in its sender's memory, where that is
  // allowed; those up to 32 KiB never.
  uint64_t attach = uint64_t{32} << 10;  // FARSPAN_CPU_ATTACH_BYTES
  // A message to another host goes over several connections from this size on, and how many.
  uint64_t stripe = uint64_t{8} << 20;  // FARSPAN_CPU_STRIPE_BYTES
  uint64_t stripes = 4;                 // FARSPAN_CPU_STRIPES, 1 to 16

  // From the environment.
  //   variables  by name; empty where there is none
  //   throws     Error kInvalidArgument: names the variable
  using Variables = std::function<std::string(const char* name)>;
  static Tuning read();
  static Tuning read_from(const Variables& variables);

  // Whether every number is one that the environment may set.
  bool is_valid() const noexcept;

  friend bool operator==(const Tuning&, const Tuning&) = default;
};

// Numbers with blanks between them.
std::ostream& operator<<(std::ostream& out, const Tuning& tuning);
std::istream& operator>>(std::istream& in, Tuning& tuning);

}  // namespace farspan::dist::cpu
