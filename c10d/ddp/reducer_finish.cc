// The end of an iteration: buckets end, and averages go where gradients belong.
#include <farspan/c10d/ddp/reducer.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/streams/streams.h>

namespace farspan::dist {

void Reducer::finish() {
  const bool asks_used = asks_for_used();
  for (size_t bucket = 0; bucket < slots_.size(); ++bucket) {
    finish_bucket(bucket);
    if (!asks_used) write_back(bucket);
  }
  if (asks_used) {
    reduce_used();
    for (size_t bucket = 0; bucket < slots_.size(); ++bucket) write_back(bucket);
  }
  progress_.finish();
  ++reductions_;
  store_.reset();
  used_.assign(used_.size(), 0);
  stopwatch_.ends();
}

void Reducer::finish_bucket(size_t index) {
  Slot& slot = slots_[index];
  const BucketResult result = std::exchange(slot.result, nullptr);
  const at::Tensor average = hook_ && !slot.sparse ? of_hook(result) : result();
  if (slot.sparse) return;
  const at::Tensor& flat = slot.bucket.flat();
  if (average.unsafeGetTensorImpl() == flat.unsafeGetTensorImpl()) return;
  if (!average.defined() || average.numel() != flat.numel()) {
    throw Error(Code::kShapeMismatch,
                "a communication hook gave " +
                    (average.defined() ? std::to_string(average.numel()) + " elements"
                                       : std::string("no tensor")) +
                    " for a bucket of " + std::to_string(flat.numel()))
        .operation("DistributedDataParallel of " + state_.type)
        .advice("give as many as GradBucket::buffer() has, of any dtype, in its order");
  }
  const at::NoGradGuard no_grad;
  if (!average.is_cpu()) record_use(average, current_stream_of(average.device()));
  at::Tensor(flat).copy_(average.reshape({-1}));
}

// In a static graph the first iteration tells it for all.
bool Reducer::asks_for_used() const noexcept {
  return options_.static_graph ? reductions_ == 0 : options_.find_unused_parameters;
}

void Reducer::reduce_used() {
  used_anywhere_ = used_;
  const at::Tensor used = at::from_blob(used_anywhere_.data(),
                                        {static_cast<int64_t>(used_anywhere_.size())}, at::kByte);
  ReduceOptions options;
  options.group = group_;
  options.op = ReduceOp::kMax;
  all_reduce(used, options);
}

void Reducer::write_back(size_t index) {
  Slot& slot = slots_[index];
  const std::vector<size_t>& parameters = progress_.plan()[index];
  const bool views = options_.gradient_as_bucket_view && store_->takes_views();
  for (size_t place = 0; place < parameters.size(); ++place) {
    if (!used_anywhere_[parameters[place]]) continue;  // keeps what it has
    const at::Tensor& parameter = state_.parameters[parameters[place]];
    if (slot.sparse) {
      store_->set_gradient(parameter, std::exchange(slot.sparse_gradient, {}));
      continue;
    }
    const at::Tensor& average = slot.bucket.gradients()[place];
    const at::Tensor gradient = store_->gradient(parameter);
    if (views) {
      if (!gradient.defined() || !slot.bucket.holds(place, gradient)) {
        store_->set_gradient(parameter, average);
      }
    } else if (gradient.defined() && gradient.layout() == at::kStrided) {
      slot.bucket.copy_to(place, gradient);
    } else {
      store_->set_gradient(parameter, average.clone());
    }
  }
}

}  // namespace farspan::dist
