#include <farspan/optim/distributed_optimizer.h>

#include <map>
#include <optional>
#include <utility>

namespace farspan::optim {

OwnerOptimizers::OwnerOptimizers(Worker& worker,
                                 const std::vector<RRef<std::vector<at::Tensor>>>& parameters,
                                 const OptimizerSpec& spec) {
  std::map<int, std::vector<RRef<std::vector<at::Tensor>>>> by_owner;
  for (const auto& part : parameters) by_owner[part.owner().rank].push_back(part);
  if (by_owner.empty()) {
    throw Error(Code::kInvalidArgument, "no parameters").operation("DistributedOptimizer");
  }
  for (const auto& [owner, parts] : by_owner) {
    locals_.push_back(worker.remote(owner, make_local_optimizer, parts, spec));
  }
}

void OwnerOptimizers::step(dist_autograd::ContextId context, const CallOptions& options) {
  std::vector<Future<void>> steps;
  for (const auto& local : locals_) {
    steps.push_back(
        local.rpc_async(options, &LocalOptimizer::step, static_cast<uint64_t>(context)));
  }
  std::optional<Error> first;
  std::string all;
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].wait_until(Deadline::never());  // the call has a deadline of its own
    if (!steps[i].has_error()) continue;
    const Error& error = steps[i].error();
    if (!first) first = error;
    all += (all.empty() ? "" : "; ") + ("on '" + locals_[i].owner().name + "': ") + error.message();
  }
  if (!first) return;
  throw Error(first->code(), all).operation("DistributedOptimizer::step").advice(first->advice());
}

}  // namespace farspan::optim
