// What a reduction gives: LibTorch in this process, on the inputs of all ranks, which input_of()
// has made so that nothing is rounded.
#pragma once

#include <string>
#include <vector>

#include "conformance/collective_suite.h"

namespace farspan::testing {

// Of PREMUL_SUM: each rank has one of its own.
inline double factor_of(int rank) { return 0.5 * (rank + 1); }

inline dist::ReduceOp op_of(dist::ReduceOp::Kind kind, int rank) {
  return kind == dist::ReduceOp::kPremulSum ? dist::ReduceOp::premul_sum(factor_of(rank))
                                            : dist::ReduceOp(kind);
}

//   all  of each rank of the group, by rank there
at::Tensor expected(dist::ReduceOp::Kind op, const std::vector<at::Tensor>& all);
// Of inputs().
at::Tensor reduced(dist::ReduceOp::Kind op, int ranks, int64_t count, at::ScalarType type,
                   int64_t salt);

std::string about(dist::ReduceOp::Kind op, at::ScalarType type, int64_t count, int ranks);

}  // namespace farspan::testing
