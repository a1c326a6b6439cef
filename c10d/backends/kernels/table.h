// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The loops of one kind of processor, by element type and operation.
#pragma once

#include <cstddef>

#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::kernels {

using Loop = void (*)(void* out, const void* const* in, int ranks, size_t count, int divisor);
using Row = Loop[ReduceOp::kPremulSum + 1];  // null: has no meaning

struct Table {
  Row rows[static_cast<size_t>(DType::BOOL) + 1];
};

extern const Table kBaseline;
#if defined(__x86_64__)
extern const Table kAvx2;  // for processors with AVX2
#endif

}  // namespace farspan::dist::kernels
