// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// A message to the other of two ranks, and one back.
#pragma once

#include <ATen/core/Tensor.h>
#include <farspan/c10d/group/point_to_point.h>

namespace bench {

inline void there_and_back(const at::Tensor& x, int rank) {
  namespace dist = farspan::dist;
  if (rank == 0) dist::send(x, 1);
  dist::recv(x, 1 - rank);
  if (rank == 1) dist::send(x, 0);
}

}  // namespace bench
