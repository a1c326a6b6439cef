// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The sum of sparse tensors: every rank gets all ranks' indices and values, and adds them itself.
#pragma once

#include <functional>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/perform.h>

namespace farspan::dist {

// `tensor` becomes the sum, coalesced: [*], the same shape on all ranks. Ranks are added in order,
// 16-bit floating types in float32, rounded at the end.
//   cost    three all_gathers: how many there are, indices, values
//   throws  Error kInvalidArgument: another ReduceOp than SUM, or not a COO tensor
Plan<std::function<void(Backend&, const Call&)>> plan_sparse_all_reduce(
    const at::Tensor& tensor, const ReduceOptions& options);

}  // namespace farspan::dist
