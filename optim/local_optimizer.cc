#include <farspan/optim/local_optimizer.h>

#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include <farspan/rpc/call/register.h>

namespace farspan::optim {
namespace {

// This worker's part in a consistent step.
class PartOfStep {
 public:
  PartOfStep(OptimRoom& room, uint64_t number) : room_(room), number_(number) {
    room_.begin_part(number_);
  }
  ~PartOfStep() { room_.end_part(number_); }
  PartOfStep(const PartOfStep&) = delete;
  PartOfStep& operator=(const PartOfStep&) = delete;

 private:
  OptimRoom& room_;
  const uint64_t number_;
};

}  // namespace

LocalOptimizer::LocalOptimizer(const OptimizerSpec& defaults, const std::vector<LocalGroup>& groups,
                               std::shared_ptr<OptimRoom> guard)
    : guard_(std::move(guard)) {
  std::vector<LocalGroup> twin_groups;
  std::unordered_set<const void*> seen;
  for (const LocalGroup& group : groups) {
    LocalGroup& twins = twin_groups.emplace_back(LocalGroup{{}, group.options});
    for (const at::Tensor& parameter : group.parameters) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        throw Error(Code::kInvalidArgument, "a parameter is given twice")
            .operation("making the optimizer " + defaults.kind)
            .advice("name each parameter once, in one group");
      }
      if (!parameter.is_leaf() || !parameter.requires_grad()) {
        throw Error(Code::kInvalidArgument, "a tensor that no gradient is kept for")
            .operation("making the optimizer " + defaults.kind)
            .advice("give it leaves that require a gradient");
      }
      parameters_.push_back(parameter);
      twins_.push_back(parameter.variable_data().set_requires_grad(true));
      twins.parameters.push_back(twins_.back());
    }
  }
  optimizer_ = make_optimizer(defaults, twin_groups);
  if (guard_) guard_->guard_parameters();
}

LocalOptimizer::~LocalOptimizer() {
  if (guard_) guard_->unguard_parameters();
}

int64_t LocalOptimizer::step(uint64_t context, uint64_t number) {
  std::optional<PartOfStep> part;
  if (guard_) part.emplace(*guard_, number);
  const auto room = dist_autograd::AutogradRoom::of(current_worker());
  const auto state = room->find_whole(dist_autograd::ContextId(context));
  if (!state) return 0;
  MutexLock lock(mutex_);
  int64_t gradients = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    twins_[i].mutable_grad() = state->leaves->find(parameters_[i]);
    gradients += twins_[i].grad().defined();
  }
  std::optional<Error> failure;
  try {
    optimizer_->step();
  } catch (const c10::Error& e) {
    failure = Error(Code::kInvalidArgument, e.what_without_backtrace());
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (guard_ && twins_[i].grad().defined()) torch::autograd::impl::bump_version(parameters_[i]);
    twins_[i].mutable_grad() = at::Tensor();
  }
  if (failure) throw *failure;
  return gradients;
}

std::shared_ptr<LocalOptimizer> make_local_optimizer(const OptimizerSpec& defaults,
                                                     const std::vector<OwnedGroup>& groups,
                                                     bool consistent) {
  std::vector<LocalGroup> local;
  for (const OwnedGroup& group : groups) {
    LocalGroup& to = local.emplace_back(LocalGroup{{}, group.options});
    for (const auto& part : group.parameters) {
      const auto& tensors = part.local_value();
      to.parameters.insert(to.parameters.end(), tensors.begin(), tensors.end());
    }
  }
  return std::make_shared<LocalOptimizer>(defaults, local,
                                          consistent ? OptimRoom::of(current_worker()) : nullptr);
}

FARSPAN_REGISTER_AS("farspan::optim::make_local_optimizer", make_local_optimizer);
FARSPAN_REGISTER_METHOD_AS("farspan::optim::LocalOptimizer::step", LocalOptimizer,
                           &LocalOptimizer::step);
FARSPAN_REGISTER_METHOD_AS("farspan::optim::LocalOptimizer::size", LocalOptimizer,
                           &LocalOptimizer::size);

}  // namespace farspan::optim
