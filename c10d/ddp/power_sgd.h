// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// PowerSgdHook: sends each matrix of gradients as the product of two thin ones.
// Source: Vogels, Karimireddy, Jaggi: "PowerSGD" (NeurIPS 2019), algorithms 1 and 2.
#pragma once

#include <cstdint>
#include <memory>

#include <farspan/c10d/ddp/comm_hook.h>

namespace farspan::dist {

// The same on all ranks.
struct PowerSgdOptions {
  int64_t rank = 1;  // columns of the thin matrices
  // Iterations before it are averaged in full: early gradients are worth it. At least 2, since
  // buckets change after the first one.
  uint64_t start_iteration = 1000;
  // Matrices that shrink by less travel in full, as all tensors of less than two dimensions do.
  double min_compression_rate = 2;
  bool error_feedback = true;  // what is lost in one iteration is added in the next
  bool warm_start = true;      // an iteration begins with the last one's matrices
  uint64_t seed = 0;           // of the first ones
};

// A communication hook: ddp.register_comm_hook(PowerSgdHook({.rank = 2})). A gradient [n, ...] is
// taken as a matrix [n, m] and becomes P Q', with P [n, rank] and Q [m, rank]: one step of a power
// iteration.
//
// The results are the same bits on all ranks, also where processors, BLAS or numbers of threads
// differ. What decides them is averaged, or computed from averages in one fixed order of
// operations, without BLAS: orthonormal columns, and P Q'. Nothing more travels for that. What an
// error feedback keeps is the rank's own.
//
//   memory  error_feedback: as much as the gradients, once; the thin matrices
//   cost    P and the uncompressed tensors travel while backward runs, Q at its end; three products
//           of n m rank multiplications, P Q' with up to twice BLAS's time for ranks above 8
//   throws  Error kInvalidArgument: a rank below 1, a start below 2; in use: gradients on a device
//
// Threading: see CommHook. Copies share what they remember; use one for one module.
class PowerSgdHook {
 public:
  explicit PowerSgdHook(const PowerSgdOptions& options = {});

  BucketResult operator()(GradBucket& bucket);

  // Elements of gradients so far, and elements that travelled for them, in compressed iterations.
  struct Traffic {
    uint64_t elements = 0;
    uint64_t sent = 0;
  };
  Traffic traffic() const;

 private:
  struct Memory;
  const std::shared_ptr<Memory> memory_;  // shared with copies
};

}  // namespace farspan::dist
