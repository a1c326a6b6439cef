#include <farspan/optim/local_optimizer.h>

#include <utility>

#include <c10/core/GradMode.h>

#include <farspan/autograd/room.h>
#include <farspan/rpc/call/register.h>

namespace farspan::optim {

LocalOptimizer::LocalOptimizer(std::vector<at::Tensor> parameters, const OptimizerSpec& spec)
    : parameters_(std::move(parameters)) {
  for (const at::Tensor& parameter : parameters_) {
    twins_.push_back(parameter.variable_data().set_requires_grad(true));
  }
  optimizer_ = make_optimizer(spec, twins_);
}

void LocalOptimizer::step(uint64_t context) {
  const auto room = dist_autograd::AutogradRoom::of(current_worker());
  const auto state = room->find(dist_autograd::ContextId(context));
  if (!state) {
    throw Error(Code::kNotFound, "the distributed autograd context is not known on worker '" +
                                     current_worker().name() + "'")
        .advice("step inside the dist_autograd::Context whose backward() has run");
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    twins_[i].mutable_grad() = state->leaves->find(parameters_[i]);
  }
  optimizer_->step();
  for (at::Tensor& twin : twins_) twin.mutable_grad() = at::Tensor();
}

std::shared_ptr<LocalOptimizer> make_local_optimizer(
    const std::vector<RRef<std::vector<at::Tensor>>>& parameters, const OptimizerSpec& spec) {
  std::vector<at::Tensor> all;
  for (const auto& part : parameters) {
    const auto& tensors = part.local_value();
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return std::make_shared<LocalOptimizer>(std::move(all), spec);
}

FARSPAN_REGISTER_AS("farspan::optim::make_local_optimizer", make_local_optimizer);
FARSPAN_REGISTER_METHOD_AS("farspan::optim::LocalOptimizer::step", LocalOptimizer,
                           &LocalOptimizer::step);

}  // namespace farspan::optim
