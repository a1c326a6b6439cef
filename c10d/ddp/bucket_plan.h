// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Which gradients are reduced together. The same input gives the same plan, on every rank.
// Source: Li et al., "PyTorch Distributed" (VLDB 2020), section 4.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace farspan::dist {

// What the plan needs to know of a parameter.
struct ParameterSize {
  size_t bytes = 0;
  uint64_t kind = 0;    // dtype and device: only parameters of one kind share a bucket
  bool sparse = false;  // its gradient is: it is alone in its bucket
};

// The parameters of each bucket, in the order in which their gradients are expected.
using BucketPlan = std::vector<std::vector<size_t>>;

// A bucket is closed by the parameter with which it reaches the limit, so buckets are larger than
// it, and a parameter is never cut. They are ordered by their last parameter: the one that is
// complete first is first.
//   order  of arrival: each parameter's index once
//   limit  bytes; `first_limit` is that of the first bucket of each kind, which is small so that
//          communication begins early
BucketPlan plan_buckets(std::span<const ParameterSize> parameters, std::span<const size_t> order,
                        size_t first_limit, size_t limit);

// The order to expect when nothing is known yet: the last parameters of a module get their
// gradients first.
std::vector<size_t> reversed_order(size_t parameters);

}  // namespace farspan::dist
