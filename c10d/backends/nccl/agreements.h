// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Agreements: whether all ranks have called the same collective, which they ask each other beside
// their devices: NCCL itself would wait for ever, or mix up what differs.
#pragma once

#include <memory>
#include <vector>

#include <farspan/c10d/group/backend.h>
#include <farspan/c10d/group/lane.h>

namespace farspan::dist::nccl {

// Asks through another backend of the same group, in order, on a thread of its own; the caller goes
// on meanwhile.
//
// Threading: ask() and settle() by one thread at a time; stop() by any.
class Agreements {
 public:
  //   rank  this one, in the group
  Agreements(std::shared_ptr<Backend> control, int rank)
      : control_(std::move(control)), rank_(rank) {}
  ~Agreements() { stop(); }
  Agreements(const Agreements&) = delete;
  Agreements& operator=(const Agreements&) = delete;

  // Ready when all ranks have called that; else an error that names who calls what, or is late, or
  // gone.
  Future<int> ask(const Call& call);
  // The same of an all_to_all: also how many elements go from whom to whom.
  Future<int> ask(const Call& call, std::span<const Block> in, std::span<const Block> out);

  // Until all that were asked for are there: then the other backend may be used.
  //   throws  the error of the last, or kTimeout
  void settle(Deadline deadline);

  // What is under way must end by itself: see Backend::leave().
  void stop() { lane_->stop(); }

 private:
  class Task;
  Future<int> post(std::shared_ptr<Task> task);

  const std::shared_ptr<Backend> control_;
  const int rank_;
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  Future<int> last_;
};

// A call of the same collective that moves something else, in memory of the processor.
Call beside(const Call& call, DType type);

}  // namespace farspan::dist::nccl
