// join(): ranks that have no inputs left do what the others do, with zeros.
#include <farspan/c10d/ddp/reducer.h>

#include <ATen/ATen.h>

#include <farspan/c10d/group/collectives.h>

namespace farspan::dist {

int Reducer::divisor() const noexcept { return join_ ? join_->divisor() : group_->size(); }

void Reducer::begin_join(const JoinOptions& options) {
  if (join_) {
    throw Error(Code::kInvalidArgument, "it is in a join() already")
        .operation("DistributedDataParallel join");
  }
  check_usable();
  join_.emplace(options, group_->size());
}

int Reducer::tell(int step) {
  const auto ranks = static_cast<size_t>(group_->size());
  std::vector<int32_t> steps(ranks);
  const auto own = static_cast<int32_t>(step);
  const at::Tensor mine = at::full({1}, own, at::kInt);
  const at::Tensor all = at::from_blob(steps.data(), {static_cast<int64_t>(ranks)}, at::kInt);
  CollectiveOptions with;
  with.group = group_;
  try {
    all_gather_into_tensor(all, mine, with);
  } catch (const Error& error) {
    throw named(error);
  }
  return join_->hear({steps.begin(), steps.end()});
}

void Reducer::end_join() {
  while (shadow_step()) {
  }
  state_.follow();
  broadcast_tensors(state_.all(), join_->leader(), group_);
  buffers_are_old_ = true;  // or not, but the same on all ranks
  join_.reset();
}

void Reducer::abandon_join(const std::exception_ptr& why) noexcept {
  const bool all_know = join_ && join_->is_terminated();
  join_.reset();
  if (!all_know) fail(named(to_error(why, Code::kRemote), ", join()"));
}

bool Reducer::shadow_step() {
  const int step = tell(kJoined);
  if (step & kRebuild) rebuild(join_->leader());
  if (step & kBuffers) broadcast_tensors(state_.buffers, join_->leader(), group_);
  if (step & kReduce) shadow_reduction();
  return step != kJoined;
}

// The same collectives in the same order as a backward pass and its finish().
void Reducer::shadow_reduction() {
  for (size_t bucket = 0; bucket < slots_.size(); ++bucket) {
    if (slots_[bucket].sparse) {
      put_sparse(progress_.plan()[bucket].front(), at::Tensor());
    } else {
      at::Tensor(slots_[bucket].bucket.flat()).zero_();
    }
    launch_bucket(bucket);
  }
  for (size_t bucket = 0; bucket < slots_.size(); ++bucket) finish_bucket(bucket);
  if (asks_for_used()) {
    used_.assign(used_.size(), 0);
    reduce_used();
  }
  ++reductions_;
}

}  // namespace farspan::dist
