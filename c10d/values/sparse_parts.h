// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Puts a sparse tensor together from parts that somebody else has made.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

// What LibTorch's kernels trust with memory is checked here: its own checks divide by the block
// sizes before they look at them. The order of indices is not among it, as not every operator keeps
// that; a `coalesced` that is not true is dropped.
//   parts   see schema::Layout; contiguous, on the CPU
//   sizes   not negative; their product fits int64_t
//   throws  Error kCorrupt
at::Tensor assemble_sparse(schema::Layout layout, at::ArrayRef<at::Tensor> parts,
                           at::IntArrayRef sizes, bool coalesced);

// A description of a tensor that breaks the rules.
[[noreturn]] void throw_corrupt_tensor(const std::string& what);

}  // namespace farspan
