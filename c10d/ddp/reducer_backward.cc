// What happens in the hooks of a backward pass.
#include <farspan/c10d/ddp/reducer.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/ddp/backward_end.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/streams/streams.h>

namespace farspan::dist {

using Phase = ReductionProgress::Phase;
using Arrival = ReductionProgress::Arrival;

void Reducer::gradient_came(size_t parameter) {
  if (has_given_way_) return;
  const Phase phase = progress_.phase();
  const bool stays_here =
      phase == Phase::kIdle || phase == Phase::kLocal || (phase == Phase::kReduced && !sync_);
  if (stays_here) {
    used_[parameter] = 1;
    return;
  }
  guarded([&] {
    if (at::GradMode::is_enabled()) {
      throw Error(Code::kInvalidArgument,
                  "a backward pass with create_graph came to '" + state_.names[parameter] + "'")
          .operation("DistributedDataParallel of " + state_.type)
          .advice("averages have no graph: use torch::autograd::grad(), or no_sync()");
    }
    if (!watched_ && phase != Phase::kReduced) watch_backward();
    if (progress_.begin()) enter_pass();
    const Arrival arrival = progress_.arrive(parameter);
    if (arrival != Arrival::kReady && arrival != Arrival::kEarly) {
      refuse_gradient(parameter, arrival);
    }
    if (current_gradient_store() != store_) {
      throw Error(Code::kInvalidArgument,
                  "gradients of one iteration go to .grad and to a context, or to two contexts")
          .operation("DistributedDataParallel of " + state_.type)
          .advice("run one backward pass for each forward pass");
    }
    used_[parameter] = 1;
    if (arrival == Arrival::kEarly) return;
    if (progress_.all_ready()) stopwatch_.last_gradient();
    put(parameter);
    launch_ready();
  });
}

void Reducer::refuse_gradient(size_t parameter, Arrival arrival) const {
  const std::string name = "'" + state_.names[parameter] + "'";
  Error error = [&] {
    if (arrival == Arrival::kTooLate) {
      return Error(Code::kInvalidArgument, "another gradient of " + name +
                                               " came after those of the iteration had been "
                                               "averaged: it would stay on this rank")
          .advice(
              "run forward() before each backward pass, or those that are not to be averaged "
              "in no_sync(); where each iteration gives a parameter several gradients "
              "(checkpoint), set static_graph");
    }
    if (options_.static_graph) {
      return Error(Code::kInvalidArgument,
                   "the graph is not that of the first iteration: " + name + " got more than " +
                       std::to_string(progress_.expected_count(parameter)) + " gradients")
          .advice("unset static_graph");
    }
    if (progress_.count(parameter) == 0) {
      return Error(Code::kInvalidArgument,
                   "a gradient of " + name + " came, to which no output of forward() leads")
          .advice("return all tensors from forward() that the loss is made of");
    }
    return Error(Code::kInvalidArgument, "a second gradient of " + name + " came in one iteration")
        .advice(
            "where each iteration gives it several (checkpoint), set static_graph; where "
            "several backward passes follow a forward pass, run all but the last in no_sync()");
  }();
  throw error.operation("DistributedDataParallel of " + state_.type);
}

// Whether the pass gives any parameter its gradient. That of torch::autograd::grad() does not: what
// it computes stays with who has asked for it, and the iteration waits for another pass.
bool Reducer::accumulates() const {
  return std::any_of(hooked_.begin(), hooked_.end(), [](const Hooked& one) {
    const auto node = one.node.lock();
    return node && runs_in_this_pass(*node);
  });
}

void Reducer::backward_begins() {
  if (progress_.phase() != Phase::kExpecting && progress_.phase() != Phase::kReducing) return;
  if (!accumulates()) return;
  guarded([this] {
    if (!watched_) watch_backward();
    outermost_ = true;
    if (!progress_.begin()) return;
    enter_pass();
    launch_ready();
  });
}

void Reducer::watch_backward() {
  watched_ = true;
  at_end_of_backward(
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->backward_ended();
      },
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->backward_failed();
      });
}

// Parameters of which it is known by now that no gradient will come.
void Reducer::enter_pass() {
  store_ = current_gradient_store();
  stopwatch_.first_gradient();
  const bool knows_reached =
      options_.find_unused_parameters && !options_.static_graph && reached_is_all_;
  for (size_t parameter = 0; wants_outputs() && parameter < state_.parameters.size(); ++parameter) {
    if (knows_reached && !reached_[parameter]) progress_.absent(parameter);
    if (progress_.is_ready(parameter)) put_absent(parameter);
  }
}

// Whether no more gradients will come, though some are missing. A pass beside the outputs (of a
// gradient penalty alone) is the outermost one, too; a static graph has several of those.
bool Reducer::has_come_to_the_end() const {
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph;
  return outermost_ || (finds_unused && !ends_inside_another_pass());
}

void Reducer::backward_ended() {
  const bool outermost = has_come_to_the_end();
  watched_ = outermost_ = false;
  if (progress_.phase() != Phase::kReducing) return;
  guarded([&] {
    if (!progress_.all_ready()) stopwatch_.last_gradient();
    if (outermost && progress_.is_counting()) {
      progress_.stop_counting();
      for (size_t parameter = 0; parameter < state_.parameters.size(); ++parameter) {
        if (progress_.expected_count(parameter) > 0) {
          put(parameter);
        } else {
          put_absent(parameter);
        }
      }
    } else if (outermost && !progress_.all_ready()) {
      const std::vector<size_t> missing = progress_.missing();
      if (options_.static_graph) {
        throw Error(Code::kInvalidArgument,
                    "the graph is not that of the first iteration: " + state_.names_of(missing) +
                        " got fewer gradients than there")
            .operation("DistributedDataParallel of " + state_.type)
            .advice("unset static_graph");
      }
      for (const size_t parameter : missing) {
        progress_.absent(parameter);
        put_absent(parameter);
      }
    }
    launch_ready();
    if (progress_.all_given_out()) finish();
  });
}

// In any thread, maybe long after.
void Reducer::backward_failed() noexcept {
  backward_failed_.store(true, std::memory_order_release);
  group_->abort("a backward pass of rank " + std::to_string(group_->rank()) + " has thrown");
}

// Gradients of one bucket may come on several streams.
void Reducer::note_stream(size_t parameter) {
  const at::Device device = state_.parameters[parameter].device();
  if (device.is_cpu()) return;
  std::vector<c10::Stream>& streams = slots_[progress_.bucket_of(parameter)].written_by;
  const c10::Stream current = current_stream_of(device);
  if (std::find(streams.begin(), streams.end(), current) == streams.end()) {
    streams.push_back(current);
  }
}

void Reducer::put(size_t parameter) {
  note_stream(parameter);
  Slot& slot = slots_[progress_.bucket_of(parameter)];
  const at::Tensor gradient = store_->gradient(state_.parameters[parameter]);
  if (slot.sparse) return put_sparse(parameter, gradient);
  if (gradient.defined() && gradient.layout() != at::kStrided) {
    throw Error(Code::kInvalidArgument,
                "the gradient of '" + state_.names[parameter] + "' is not dense")
        .operation("DistributedDataParallel of " + state_.type)
        .advice("name it in DdpOptions::sparse_parameters");
  }
  const size_t place = place_in_bucket_[parameter];
  if (gradient.defined() && slot.bucket.holds(place, gradient)) return;
  slot.bucket.put(place, gradient);
  // The other memory is free for what the pass computes next.
  if (gradient.defined() && options_.gradient_as_bucket_view && store_->takes_views()) {
    store_->set_gradient(state_.parameters[parameter], slot.bucket.gradients()[place]);
  }
}

// What it has from before counts on the ranks where the parameter is used. Where it is used on none
// it must stay as it is, so it must not lie in the bucket.
void Reducer::put_absent(size_t parameter) {
  note_stream(parameter);
  Slot& slot = slots_[progress_.bucket_of(parameter)];
  const at::Tensor gradient = store_->gradient(state_.parameters[parameter]);
  if (slot.sparse) return put_sparse(parameter, gradient);
  const size_t place = place_in_bucket_[parameter];
  if (gradient.defined() && slot.bucket.holds(place, gradient)) {
    store_->set_gradient(state_.parameters[parameter], gradient.clone());
  } else {
    slot.bucket.put(place, gradient);
  }
}

void Reducer::put_sparse(size_t parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor& own = state_.parameters[parameter];
  at::Tensor& place = slots_[progress_.bucket_of(parameter)].sparse_gradient;
  if (!gradient.defined()) {
    // No rows.
    std::vector<int64_t> shape = own.sizes().vec();
    shape[0] = 0;
    place = at::sparse_coo_tensor(
        at::empty({1, 0}, own.options().dtype(at::kLong).requires_grad(false)),
        at::empty(shape, own.options().requires_grad(false)), own.sizes());
    return;
  }
  if (!gradient.is_sparse()) {
    throw Error(Code::kInvalidArgument,
                "the gradient of '" + state_.names[parameter] + "' is not sparse")
        .operation("DistributedDataParallel of " + state_.type)
        .advice("take it out of DdpOptions::sparse_parameters, or use the parameter sparsely only");
  }
  // A tensor of its own, since the sum is written to it while the pass goes on.
  place = at::sparse_coo_tensor(gradient._indices(), gradient._values(), gradient.sizes());
  place._coalesced_(gradient.is_coalesced());
}

void Reducer::launch_ready() {
  while (const auto bucket = progress_.next_bucket()) launch(*bucket);
}

void Reducer::launch(size_t index) {
  if (index == 0 && join_) tell(kReduce);
  stopwatch_.bucket_begins();
  launch_bucket(index);
}

void Reducer::launch_bucket(size_t index) {
  Slot& slot = slots_[index];
  for (const c10::Stream& stream : std::exchange(slot.written_by, {})) {
    follow(current_stream_of(stream.device()), stream);
  }
  if (slot.sparse) {
    ReduceOptions options;
    options.group = group_;
    const Work work = all_reduce_async(slot.sparse_gradient, options);
    slot.result = [work, sum = slot.sparse_gradient, divisor = divisor()] {
      work.wait();
      return at::Tensor(sum).div_(divisor);
    };
    return;
  }
  const bool is_last = index + 1 == slots_.size();
  GradBucket bucket(slot.bucket, index, is_last, group_, divisor());
  if (!hook_) {
    slot.result = start_average(bucket, bucket.buffer());
    return;
  }
  slot.result = of_hook([&] { return hook_(bucket); });
  if (!slot.result) {
    throw Error(Code::kInvalidArgument, "the communication hook gave no function for its result")
        .operation("DistributedDataParallel of " + state_.type)
        .advice("return one that gives the averaged gradients");
  }
}

}  // namespace farspan::dist
