// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Signature: what all ranks of a group must agree on when they call a collective. Backends hand it
// round with the data, so that ranks that disagree are told at once, and how.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist {

// The numbers travel: append only, never reuse.
enum class Op : uint8_t {
  kNone = 0,
  kBroadcast = 1,
  kAllReduce = 2,
  kReduce = 3,
  kAllGather = 4,
  kGather = 5,
  kScatter = 6,
  kReduceScatter = 7,
  kAllToAll = 8,
  kBarrier = 9,
  kSend = 10,
  kRecv = 11,
  kSparseAllReduce = 12,
};

// "all_reduce".
std::string_view name_of(Op op) noexcept;

// Of one call; travels as it lies in memory. What has no meaning for an operation is zero.
struct Signature {
  static constexpr size_t kMaxDims = 6;

  uint64_t sequence = 0;  // of the group's collectives, or of this rank's messages, from 1
  Op op = Op::kNone;
  uint8_t type = 0;            // DType
  uint8_t reduce = 0;          // ReduceOp::Kind
  uint8_t dims : 7 = 0;        // of shape
  bool on_device : 1 = false;  // whether backends are given memory of a device
  int32_t root = -1;           // rank in the group
  uint64_t count = 0;          // elements of the tensor, or of all its parts
  // Of the parts' sizes, where they differ from rank to rank; of a sparse tensor its sparse_dim.
  uint64_t sizes_hash = 0;
  std::array<int64_t, kMaxDims> shape = {};  // more dimensions are one, the product

  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 80);

void set_shape(Signature& signature, std::span<const int64_t> shape) noexcept;

// "all_reduce SUM of float32 [2, 3]".
std::string describe(const Signature& signature);

// What two ranks disagree on; nothing when they agree.
//   who, other_who  names of the ranks, as "rank 1 (host:pid)"
//   returns         "rank 1 (host:pid) calls all_reduce SUM of float32 [2, 3], and rank 0 ..."
std::optional<std::string> difference(std::string_view who, const Signature& one,
                                      std::string_view other_who, const Signature& other);

// What the two ends of a part of an all_to_all disagree on, in elements.
//   from, to  names of the ranks, as above
//   returns   "rank 0 (host:pid) sends 2 elements to rank 1 (host:pid), which expects 1"
std::string describe_parts(std::string_view from, uint64_t sent, std::string_view to,
                           uint64_t expected);

}  // namespace farspan::dist
