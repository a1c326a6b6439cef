// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What DistributedDataParallel can be told, and what it tells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/process_group.h>

namespace farspan::dist {

// The same on all ranks.
struct DdpOptions {
  // The ranks that train together; null: the default group. DDP makes a group of its own of them,
  // so its collectives keep no order with the program's.
  Group group = nullptr;

  // Bytes of gradients that are reduced together. The first bucket is small, so that communication
  // begins early.
  size_t bucket_bytes = size_t{25} << 20;
  size_t first_bucket_bytes = size_t{1} << 20;

  // Gradients lie in the memory of their bucket, which saves a copy and their memory. The next
  // iteration overwrites them there, also in tensors that the program has kept: clone() those.
  bool gradient_as_bucket_view = true;

  // Some parameters get no gradient in some iterations: outputs do not lead to them, or the
  // backward pass leaves them out. Costs a walk through the graph after each forward pass, and one
  // more collective.
  bool find_unused_parameters = false;

  // Each iteration gives each parameter as many gradients as the first one did, maybe none. Lets a
  // parameter get several (checkpoint), and finds unused ones at no cost.
  bool static_graph = false;

  // Rank 0's buffers (running means, say) come to all before each forward pass.
  bool broadcast_buffers = true;

  // Rank 0's parameters and buffers come to all at construction. False: they are the same already.
  bool init_sync = true;

  // Parameters and buffers, by name, that DDP leaves alone.
  std::vector<std::string> ignore = {};

  // Parameters, by name, whose gradients are sparse. Those of Embedding and EmbeddingBag with
  // sparse(true) are known.
  std::vector<std::string> sparse_parameters = {};
};

struct JoinOptions {
  // Gradients are divided by the number of ranks; false: of those that still have inputs.
  bool divide_by_initial_world_size = true;
  // All ranks throw as soon as one has no more inputs.
  bool throw_on_early_termination = false;
};

// How long the parts of one iteration took, on this rank.
struct DdpTimes {
  Clock::duration forward{0};
  Clock::duration backward{0};       // from the first gradient of a parameter to the last
  Clock::duration communication{0};  // from the beginning of the first bucket to the end of all
  Clock::duration overlap{0};        // of these two

  bool operator==(const DdpTimes&) const = default;
};

struct DdpStatistics {
  uint64_t iterations = 0;             // that were reduced
  size_t parameters = 0;               // tensors that get gradients
  size_t parameter_bytes = 0;          // of these
  bool rebuilt = false;                // the buckets follow the order of arrival
  std::vector<size_t> bucket_bytes;    // in the order of their reduction
  std::vector<DdpTimes> last;          // of the last iterations, at most kKept, the latest last
  DdpTimes average;                    // of these
  static constexpr size_t kKept = 32;  // iterations
};

}  // namespace farspan::dist
