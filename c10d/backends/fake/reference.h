// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Every collective in its plainest form, over the memory of all ranks at once.
#pragma once

#include <span>
#include <vector>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist::fake {

// What one rank brings: of broadcast, all_reduce and reduce `data`, of the others `in` and `out`.
struct Seat {
  Call call;
  std::vector<Block> in, out;  // one entry where an operation has one
};

// Performs the collective that all seats, by rank, agree on.
//   ranks   of the seats in the default group, for errors
//   throws  Error kShapeMismatch: parts of all_to_all that do not fit
void perform(std::span<Seat> seats, std::span<const int> ranks);

}  // namespace farspan::dist::fake
