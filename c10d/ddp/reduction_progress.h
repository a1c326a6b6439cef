// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ReductionProgress: where one rank stands in its iteration: which gradients have come, which
// buckets are complete, what may be reduced next. A state machine: no I/O, no threads, no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <farspan/c10d/ddp/bucket_plan.h>

namespace farspan::dist {

// An iteration: forward passes (expect), gradients in whatever order (arrive), buckets in the order
// of the plan (next_bucket), and the end (finish). Buckets are handed out strictly in their order,
// though a later one may be complete first: all ranks must reduce the same one at a time.
//
// Threading: a value, used by one thread at a time.
class ReductionProgress {
 public:
  enum class Phase : uint8_t {
    kIdle,       // nothing has been expected yet, or all that was is forgotten
    kLocal,      // the last forward pass was in no_sync(): gradients stay here
    kExpecting,  // a forward pass has been, and no gradient yet
    kReducing,   // gradients come
    kReduced,    // all have come and been reduced
  };
  enum class Arrival : uint8_t {
    kLocal,    // not to be reduced
    kEarly,    // more gradients of this parameter come in this iteration (static graph)
    kReady,    // the last one: the parameter's gradient is complete
    kTwice,    // it had been complete, or known to be absent
    kTooLate,  // the iteration has been reduced
  };

  ReductionProgress() = default;
  ReductionProgress(BucketPlan plan, size_t parameters);

  const BucketPlan& plan() const noexcept { return plan_; }
  size_t bucket_of(size_t parameter) const { return bucket_of_[parameter]; }
  // Other buckets, between two iterations.
  void set_plan(BucketPlan plan);

  // A forward pass whose gradients are to be reduced, or stay here.
  //   returns  false: gradients of the one before are missing, and nothing has changed
  bool expect();
  bool expect_local();

  Phase phase() const noexcept { return phase_; }
  // A backward pass begins; parameters that the static graph does not use are ready from now on.
  //   returns  false: none is expected, or it has begun before
  bool begin();
  // begin() has been called.
  Arrival arrive(size_t parameter);
  // None will come for this parameter in this iteration. Ignored when it is complete.
  void absent(size_t parameter);
  bool is_ready(size_t parameter) const { return ready_[parameter]; }

  // The next bucket to reduce: each is given out once, in order, when its parameters are ready.
  std::optional<size_t> next_bucket();
  bool all_ready() const noexcept { return left_ == 0; }
  bool all_given_out() const noexcept { return next_ == plan_.size(); }
  std::vector<size_t> missing() const;

  // The iteration has been reduced.
  void finish();

  // Static graph. While counting, gradients are counted, and none makes a parameter ready; from
  // stop_counting() on a parameter is ready with as many as it got meanwhile, and those that got
  // none are absent from the beginning of each iteration.
  void start_counting();
  void stop_counting();
  bool is_counting() const noexcept { return counting_; }
  uint32_t count(size_t parameter) const { return counts_[parameter]; }
  uint32_t expected_count(size_t parameter) const { return expected_[parameter]; }

  // The parameters in the order in which they became ready in this iteration, or the last.
  const std::vector<size_t>& arrival_order() const noexcept { return arrived_; }

 private:
  void reset();
  void make_ready(size_t parameter);

  BucketPlan plan_;
  std::vector<size_t> bucket_of_;
  std::vector<size_t> missing_in_;  // by bucket
  std::vector<bool> ready_;
  std::vector<uint32_t> counts_;    // gradients in this iteration
  std::vector<uint32_t> expected_;  // of each iteration
  std::vector<size_t> arrived_;
  size_t left_ = 0;
  size_t next_ = 0;
  bool counting_ = false;
  Phase phase_ = Phase::kIdle;
};

}  // namespace farspan::dist
