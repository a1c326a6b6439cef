// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The arithmetic of collectives: one run of elements out of those of several ranks. Every variant,
// for whatever processor, gives the same bits.
#pragma once

#include <cstddef>
#include <span>

#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::kernels {

// out[i] = in[0][i] op in[1][i] op ..., in that order; `out` may be one of `in`. AVG and PREMUL_SUM
// are sums here. 16-bit floating types are reduced in float32 and rounded once.
//   divisor  what a sum of floating or complex elements is divided by at the end; 1: nothing
//   needs    why_not(op, type).empty()
void reduce(DType type, ReduceOp::Kind op, std::byte* out, std::span<const std::byte* const> in,
            size_t count, int divisor = 1);

}  // namespace farspan::dist::kernels
