// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Generation: how the workers of one start tell themselves from those of an earlier one that used
// the same store.
#pragma once

#include <string>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Waits for all ranks, and returns a name that they all get and that nobody got before. Keys under
// PrefixStore(name, store) are then theirs alone, whatever an earlier start, complete or not, has
// left in the store. Every rank calls it once per start. Parts of a program that do so
// independently wrap the store in a PrefixStore of their own first.
//
// How: each rank writes a random nonce; rank 0 answers every nonce that it sees with a name it has
// just made up, and says "go" once all ranks have acknowledged it. A rank that was answered by a
// rank 0 of an earlier start never sees its "go", but the answer of the new one instead.
//   throws  Error kTimeout (rank 0 names the ranks that are missing), kInvalidArgument (the ranks
//           do not agree on world_size), kAlreadyExists (another worker has this rank), and what
//           the store throws
//
// Threading: any thread; one call for each rank at a time. Blocks its thread, and starts none.
std::string agree_on_generation(Store& store, int rank, int world_size, Deadline deadline);

}  // namespace farspan::dist
