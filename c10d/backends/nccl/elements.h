// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Elements: which of NCCL's types and operations stand for those of PyTorch.
#pragma once

#include <cstddef>
#include <optional>

#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::nccl {

// A reduction in NCCL's terms.
struct AsNccl {
  DType type;         // (u)int8, (u)int32, (u)int64, float16, bfloat16, float32 or float64
  size_t factor;      // elements of that type for one element
  ReduceOp::Kind op;  // SUM, AVG, PRODUCT, MIN or MAX
};

// None: NCCL cannot do it, or it has no meaning.
//
//   complex     a real and an imaginary number: for SUM and AVG, which know no difference
//   bool        bytes that are 0 or 1: the greatest is "any", the least is "all"
//   PREMUL_SUM  SUM: the elements come multiplied
std::optional<AsNccl> as_nccl(ReduceOp::Kind op, DType type) noexcept;

}  // namespace farspan::dist::nccl
