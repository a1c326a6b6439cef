// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Reducer: averages the gradients of a module's parameters over the ranks while backward runs.
// What DistributedDataParallel does that does not depend on the module's type.
// Source: Li et al., "PyTorch Distributed" (VLDB 2020); where we differ: c10d/ddp/README.md.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/ddp/bucket.h>
#include <farspan/c10d/ddp/comm_hook.h>
#include <farspan/c10d/ddp/gradient_store.h>
#include <farspan/c10d/ddp/graph_walk.h>
#include <farspan/c10d/ddp/join_round.h>
#include <farspan/c10d/ddp/module_state.h>
#include <farspan/c10d/ddp/options.h>
#include <farspan/c10d/ddp/reduction_progress.h>
#include <farspan/c10d/ddp/stopwatch.h>

namespace farspan::dist {

// It sits behind the nodes that accumulate the parameters' gradients. What it throws comes out of
// forward() or backward(), and is remembered: then its group is aborted, so that no rank waits for
// this one, and each later forward says why.
//
// Threading: one thread at a time: forward passes in the program's, hooks in that which runs the
//            backward pass. A backward pass that throws may tell so from any thread.
// Lifetime:  shared by its DistributedDataParallel and a backward pass that runs.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  // Compares and synchronises the ranks' modules. What fails here fails on all ranks.
  static std::shared_ptr<Reducer> make(const torch::nn::Module* module, const DdpOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Around each forward pass.
  void before_forward();
  //   outputs  what forward() gave; needed when wants_outputs()
  void after_forward(const std::vector<at::Tensor>& outputs);
  bool wants_outputs() const noexcept {
    return options_.find_unused_parameters || options_.static_graph;
  }

  // no_sync(): gradients of forward passes meanwhile stay on this rank.
  void set_sync(bool sync) noexcept { sync_ = sync; }
  bool sync() const noexcept { return sync_; }

  //   throws  Error kInvalidArgument: there is one, or there has been an iteration
  void set_hook(CommHook hook);

  // join(): from begin to end forward and backward passes tell the other ranks what they do.
  void begin_join(const JoinOptions& options);
  // Does with the others what they do, until none has inputs left; then all have the parameters of
  // the last one.
  void end_join();
  // The ranks must not wait for this one.
  void abandon_join(const std::exception_ptr& why) noexcept;

  DdpStatistics statistics() const;
  const Group& group() const noexcept { return group_; }

 private:
  class GradientHook;
  // A bucket with what an iteration makes of it.
  struct Slot {
    Bucket bucket;
    bool sparse = false;
    at::Tensor sparse_gradient;           // in place of the bucket's
    BucketResult result;                  // when it is under way
    std::vector<c10::Stream> written_by;  // of devices, each once
  };

  Reducer(ModuleState state, const DdpOptions& options, Group group);
  static void check_free(const ModuleState& state);
  void hook(size_t parameter);
  bool has_failed() const;
  void follow_parameters();
  void make_slots();

  // reducer.cc: around forward passes.
  void check_usable() const;
  void fail(const Error& error) noexcept;
  // The same of DDP, for users that have not called any collective.
  //   part  of it, as ", communication hook"
  Error named(const Error& error, const std::string& part = {}) const;
  template <class Fn>
  void guarded(Fn&& fn);
  template <class Fn>
  auto of_hook(Fn&& fn) const;
  void rebuild(int source);
  void forget_iteration();
  void watch_outputs(const std::vector<at::Tensor>& outputs);

  // reducer_backward.cc: in hooks.
  void gradient_came(size_t parameter);
  void backward_begins();
  bool accumulates() const;
  void watch_backward();
  void enter_pass();
  void backward_ended();
  bool has_come_to_the_end() const;
  void backward_failed() noexcept;
  [[noreturn]] void refuse_gradient(size_t parameter, ReductionProgress::Arrival arrival) const;
  void note_stream(size_t parameter);
  void put(size_t parameter);
  void put_absent(size_t parameter);
  void put_sparse(size_t parameter, const at::Tensor& gradient);
  void launch_ready();
  void launch(size_t bucket);
  void launch_bucket(size_t bucket);

  // reducer_finish.cc: at the end of a backward pass.
  void finish();
  void finish_bucket(size_t bucket);
  void reduce_used();
  void write_back(size_t bucket);
  bool asks_for_used() const noexcept;

  // reducer_join.cc
  int tell(int step);
  bool shadow_step();
  void shadow_reduction();
  int divisor() const noexcept;

  // Constant after construction.
  const DdpOptions options_;
  const Group group_;  // of DDP's own
  CommHook hook_;

  ModuleState state_;
  struct Hooked {
    std::weak_ptr<torch::autograd::Node> node;
    uintptr_t key;
  };
  Accumulators accumulators_;
  std::vector<Hooked> hooked_;  // also nodes of before that a graph still holds

  std::atomic<bool> backward_failed_{false};
  std::optional<Error> failure_;
  bool has_given_way_ = false;  // gradients are no concern of it any more

  bool sync_ = true;
  bool buffers_are_old_ = true;  // rank 0's have not come since the last iteration
  ReductionProgress progress_;
  std::vector<Slot> slots_;  // by bucket
  std::vector<size_t> place_in_bucket_;
  uint64_t reductions_ = 0;
  bool rebuilt_ = false;

  // Of this iteration.
  std::shared_ptr<GradientStore> store_;
  bool watched_ = false;    // the backward pass that runs will tell of its end
  bool outermost_ = false;  // it is the one that the outputs are part of
  std::vector<bool> reached_;
  bool reached_is_all_ = true;
  // Parameters that got gradients, also in no_sync(): here, and on any rank.
  std::vector<uint8_t> used_, used_anywhere_;

  std::optional<JoinRound> join_;
  DdpStopwatch stopwatch_;
};

// What the user's function throws, by name.
template <class Fn>
auto Reducer::of_hook(Fn&& fn) const {
  try {
    return fn();
  } catch (...) {
    throw named(to_error(std::current_exception(), Code::kRemote), ", communication hook");
  }
}

// What fails in it fails the reducer.
template <class Fn>
void Reducer::guarded(Fn&& fn) {
  try {
    check_usable();
    fn();
  } catch (...) {
    const Error error = named(to_error(std::current_exception()));
    fail(error);
    throw error;
  }
}

}  // namespace farspan::dist
