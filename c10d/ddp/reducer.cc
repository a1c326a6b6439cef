// Construction, and what happens around forward passes.
#include <farspan/c10d/ddp/reducer.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <farspan/c10d/group/collectives.h>

namespace farspan::dist {
namespace {

using Phase = ReductionProgress::Phase;

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

std::vector<ParameterSize> sizes_of(const ModuleState& state) {
  std::vector<ParameterSize> sizes;
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    const at::Tensor& one = state.parameters[i];
    sizes.push_back({one.nbytes(), static_cast<uint64_t>(one.scalar_type()), state.sparse[i]});
  }
  return sizes;
}

Group own_group(const Group& group) {
  const Group parent = group_or_default(group, "DistributedDataParallel");
  return new_group_of(parent, parent->ranks(), std::nullopt, "DDP's group");
}

// The same of DDP, for users that have not called any collective.
Error of_type(const std::string& type, Error error, const std::string& part = {}) {
  constexpr const char* kOwn = "DistributedDataParallel";
  const std::string inner = error.operation();
  if (inner.starts_with(kOwn)) return error;
  error.operation(kOwn + (" of " + type) + part + (inner.empty() ? "" : ", its " + inner));
  // What a collective's error comes from is often what ranks do with DDP.
  const bool may_differ = error.code() == Code::kTimeout || error.code() == Code::kShapeMismatch ||
                          error.message().ends_with("has left the group");
  if (inner.empty() || !may_differ) return error;
  return error.advice(
      "all ranks must make it, and run as many forward and backward passes: with join() they may "
      "have different numbers of inputs, and module() can be evaluated on one rank alone; else "
      "look at what that rank does");
}

}  // namespace

// Behind the node that accumulates a parameter's gradient.
class Reducer::GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(Reducer& reducer, size_t parameter) : reducer_(reducer), parameter_(parameter) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    reducer_.gradient_came(parameter_);
    return outputs;
  }
  Reducer& reducer() const noexcept { return reducer_; }

 private:
  Reducer& reducer_;  // takes its hooks away before it goes
  const size_t parameter_;
};

std::shared_ptr<Reducer> Reducer::make(const torch::nn::Module* module, const DdpOptions& options) {
  const Group group = own_group(options.group);
  const std::string type = module ? module->name() : "nothing";
  const auto read = [&] {
    if (!module) {
      throw Error(Code::kInvalidArgument, "the module is null")
          .operation("DistributedDataParallel")
          .advice("make the module first: std::make_shared<Net>()");
    }
    ModuleState state = read_module(*module, options);
    check_free(state);
    return state;
  };
  ModuleState state = [&] {
    try {
      return read_on_all_ranks(read, options, group);
    } catch (const Error& error) {
      throw of_type(type, error);
    }
  }();
  try {
    const std::shared_ptr<Reducer> reducer(new Reducer(std::move(state), options, group));
    if (options.init_sync) broadcast_tensors(reducer->state_.all(), 0, group);
    for (size_t i = 0; i < reducer->state_.parameters.size(); ++i) reducer->hook(i);
    return reducer;
  } catch (...) {
    const Error error = of_type(type, to_error(std::current_exception()));
    group->abort(error.what());
    throw error;
  }
}

Reducer::Reducer(ModuleState state, const DdpOptions& options, Group group)
    : options_(options),
      group_(std::move(group)),
      state_(std::move(state)),
      accumulators_(state_.parameters),
      used_(state_.parameters.size(), 0),
      used_anywhere_(state_.parameters.size(), 1) {
  const size_t parameters = state_.parameters.size();
  // Until the order of arrival is known nothing is gained by cutting; where it never will be, the
  // reverse of the module's order is the best guess.
  const bool will_be_known = options_.static_graph || !options_.find_unused_parameters;
  const size_t limit = will_be_known ? kNoLimit : options_.bucket_bytes;
  const size_t first = std::min(limit, options_.first_bucket_bytes);
  progress_ = ReductionProgress(plan_buckets(sizes_of(state_), reversed_order(parameters),
                                             will_be_known ? kNoLimit : first, limit),
                                parameters);
  if (options_.static_graph) progress_.start_counting();
  make_slots();
}

Reducer::~Reducer() {
  for (const Hooked& one : hooked_) {
    if (const auto node = one.node.lock()) node->del_post_hook(one.key);
  }
}

void Reducer::hook(size_t parameter) {
  const auto& node = accumulators_.nodes()[parameter];
  for (const auto& one : node->post_hooks()) {
    // One that has failed goes on with nothing: its parameters are another's from now on.
    if (const auto* hook = dynamic_cast<GradientHook*>(one.get())) {
      hook->reducer().has_given_way_ = hook->reducer().has_failed();
    }
  }
  const auto key = node->add_post_hook(std::make_unique<GradientHook>(*this, parameter));
  hooked_.push_back({node, key});
}

bool Reducer::has_failed() const {
  return failure_ || backward_failed_.load(std::memory_order_acquire) || group_->failure();
}

// Two reducers would each take the other's average for a gradient.
void Reducer::check_free(const ModuleState& state) {
  for (size_t i = 0; i < state.parameters.size(); ++i) {
    const auto node = torch::autograd::impl::grad_accumulator(state.parameters[i]);
    for (const auto& one : node->post_hooks()) {
      const auto* hook = dynamic_cast<GradientHook*>(one.get());
      if (!hook || hook->reducer().has_failed()) continue;
      throw Error(Code::kInvalidArgument,
                  "'" + state.names[i] +
                      "' is a parameter of another DistributedDataParallel, of " +
                      hook->reducer().state_.type)
          .advice("destroy that one first, or wrap one module that holds all that learns");
    }
  }
}

// torch::load() gives a parameter another tensor's memory in place, and with that another node that
// takes its gradient. Graphs of before keep theirs, hooked.
void Reducer::follow_parameters() {
  state_.follow();
  bool replaced = false;
  for (size_t i = 0; i < state_.parameters.size(); ++i) {
    if (!accumulators_.follow(i, state_.parameters[i])) continue;
    hook(i);
    replaced = true;
  }
  if (replaced) std::erase_if(hooked_, [](const Hooked& one) { return one.node.expired(); });
}

void Reducer::make_slots() {
  slots_.clear();
  place_in_bucket_.resize(state_.parameters.size());
  for (const auto& parameters : progress_.plan()) {
    Slot slot;
    slot.sparse = state_.sparse[parameters.front()];
    std::vector<at::Tensor> tensors;
    for (const size_t parameter : parameters) {
      place_in_bucket_[parameter] = tensors.size();
      tensors.push_back(state_.parameters[parameter]);
    }
    if (!slot.sparse) slot.bucket = Bucket(std::move(tensors));
    slots_.push_back(std::move(slot));
  }
}

void Reducer::set_hook(CommHook hook) {
  const auto refuse = [](const char* what, const char* advice) {
    throw Error(Code::kInvalidArgument, what).operation("register_comm_hook").advice(advice);
  };
  if (!hook) refuse("the communication hook is empty", "pass a function");
  if (hook_) refuse("there is a communication hook already", "register one, once");
  if (progress_.phase() != Phase::kIdle || reductions_ > 0) {
    refuse("there has been a forward pass", "register the hook before the first one");
  }
  hook_ = std::move(hook);
}

void Reducer::check_usable() const {
  if (failure_) {
    throw Error(failure_->code(), std::string("it failed before: ") + failure_->what())
        .operation("DistributedDataParallel of " + state_.type)
        .advice("make a new one, of the ranks that go on");
  }
  if (backward_failed_.load(std::memory_order_acquire)) {
    throw Error(Code::kCancelled, "a backward pass has thrown, and gradients are reduced in part")
        .operation("DistributedDataParallel of " + state_.type)
        .advice("make a new one");
  }
}

Error Reducer::named(const Error& error, const std::string& part) const {
  return of_type(state_.type, error, part);
}

void Reducer::fail(const Error& error) noexcept {
  if (failure_) return;
  failure_ = error;
  group_->abort(error.what());
}

void Reducer::before_forward() {
  guarded([this] {
    stopwatch_.forward_begins();
    follow_parameters();
    if (progress_.phase() != Phase::kReducing || !at::GradMode::is_enabled()) return;
    throw Error(Code::kInvalidArgument,
                "the backward pass before this forward pass gave no "
                "gradient to " +
                    state_.names_of(progress_.missing()))
        .operation("DistributedDataParallel of " + state_.type)
        .advice(
            "use all outputs of forward() in the loss; where some parameters take no part in some "
            "iterations, set find_unused_parameters; where the same ones never do, static_graph");
  });
  const bool rebuilds = sync_ && at::GradMode::is_enabled() && !rebuilt_ && reductions_ > 0 &&
                        (options_.static_graph || !options_.find_unused_parameters);
  const bool buffers = options_.broadcast_buffers && buffers_are_old_ && !state_.buffers.empty();
  int source = 0;
  if (join_) {
    tell(kForward | (rebuilds ? kRebuild : 0) | (buffers ? kBuffers : 0));
    source = join_->leader();
  }
  if (!rebuilds && !buffers) return;
  guarded([&] {
    if (rebuilds) rebuild(source);
    if (buffers) broadcast_tensors(state_.buffers, source, group_);
  });
}

void Reducer::after_forward(const std::vector<at::Tensor>& outputs) {
  buffers_are_old_ = sync_ && at::GradMode::is_enabled();
  if (!at::GradMode::is_enabled()) return;
  guarded([&] {
    if (!sync_) {
      progress_.expect_local();
      return;
    }
    const bool is_first = progress_.phase() != Phase::kExpecting;
    progress_.expect();
    if (is_first) forget_iteration();
    if (wants_outputs()) watch_outputs(outputs);
    stopwatch_.forward_ends();
  });
}

void Reducer::forget_iteration() {
  store_.reset();
  watched_ = outermost_ = false;
  reached_is_all_ = true;
  if (options_.find_unused_parameters) reached_.assign(state_.parameters.size(), false);
}

// The backward pass that comes to an output is the outermost one: with its end all gradients have
// come. A pass inside of it (checkpoint) may reach parameters first.
void Reducer::watch_outputs(const std::vector<at::Tensor>& outputs) {
  if (options_.find_unused_parameters && !options_.static_graph) {
    reached_is_all_ = accumulators_.mark_reached(outputs, reached_) && reached_is_all_;
  }
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = weak_from_this()](const at::Tensor&) {
      if (const auto self = weak.lock()) self->backward_begins();
    });
  }
}

// In the order in which gradients came in the first iteration, at the rank that says so.
void Reducer::rebuild(int source) {
  const size_t parameters = state_.parameters.size();
  std::vector<bool> named(parameters, false);
  std::vector<size_t> order = progress_.arrival_order();
  for (const size_t one : order) named[one] = true;
  for (const size_t one : reversed_order(parameters)) {
    if (!named[one]) order.push_back(one);
  }
  const at::Tensor told = at::empty({static_cast<int64_t>(parameters)}, at::kLong);
  auto* const indices = told.data_ptr<int64_t>();
  for (size_t i = 0; i < parameters; ++i) indices[i] = static_cast<int64_t>(order[i]);
  CollectiveOptions with;
  with.group = group_;
  broadcast(told, group_->global_rank(source), with);
  for (size_t i = 0; i < parameters; ++i) order[i] = static_cast<size_t>(indices[i]);
  BucketPlan plan = plan_buckets(sizes_of(state_), order,
                                 std::min(options_.first_bucket_bytes, options_.bucket_bytes),
                                 options_.bucket_bytes);
  rebuilt_ = true;
  if (plan == progress_.plan()) return;
  progress_.set_plan(std::move(plan));
  make_slots();
}

DdpStatistics Reducer::statistics() const {
  DdpStatistics statistics;
  stopwatch_.report(statistics);
  statistics.parameters = state_.parameters.size();
  statistics.rebuilt = rebuilt_;
  for (const auto& parameters : progress_.plan()) {
    size_t bytes = 0;
    for (const size_t one : parameters) bytes += state_.parameters[one].nbytes();
    statistics.bucket_bytes.push_back(bytes);
    statistics.parameter_bytes += bytes;
  }
  return statistics;
}

}  // namespace farspan::dist
