#include "integration/autograd_suite.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include <farspan/autograd/room.h>

#include "support/held.h"

namespace farspan::testing {

using at::Tensor;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using dist_autograd::ContextId;
using dist_autograd::OutsideContext;

Tensor variable(at::IntArrayRef shape, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::rand(shape, generator).set_requires_grad(true);
}
Tensor& weight_of(int rank) {
  static std::vector<Tensor> weights{variable({4, 4}, 1), variable({4, 4}, 2), variable({4, 4}, 3)};
  return weights.at(static_cast<size_t>(rank));
}
Tensor layer(const Tensor& x) { return at::tanh(at::mm(x, weight_of(current_worker().rank()))); }
Tensor plain(const Tensor& x) { return at::tanh(x); }

namespace {

Tensor gradient_of_weight(int64_t context) {
  Worker& here = current_worker();
  const auto state = AutogradRoom::of(here)->find(ContextId(context));
  return state ? state->leaves->find(weight_of(here.rank())) : Tensor();
}

// What this process has watched, of all its workers.
std::mutex watched_mutex;
std::vector<std::weak_ptr<dist_autograd::ContextState>> watched;
void watch_here(int64_t context) {
  const auto state = AutogradRoom::of(current_worker())->find(ContextId(context));
  const std::lock_guard lock(watched_mutex);
  if (state) watched.push_back(state);
}
int64_t watched_alive() {
  const std::lock_guard lock(watched_mutex);
  std::erase_if(watched, [](const auto& context) { return context.expired(); });
  return static_cast<int64_t>(watched.size());
}
FARSPAN_REGISTER(layer, plain, gradient_of_weight, watch_here, watched_alive);

}  // namespace

Tensor weight_gradient(int rank, const Context& context) {
  const OutsideContext outside;
  return current_worker().rpc_sync(rank, gradient_of_weight, static_cast<int64_t>(context.id()));
}

void AutogradSuite::watch(const Context& context) {
  const OutsideContext outside;
  for (int rank = 0; rank < 3; ++rank) {
    if (!cluster().serves(rank)) continue;
    w0().rpc_sync(rank, watch_here, static_cast<int64_t>(context.id()));
  }
}

int64_t AutogradSuite::passes() {
  const OutsideContext outside;
  int64_t sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    if (cluster().serves(rank)) sum += w0().rpc_sync(rank, passes_here);
  }
  return sum;
}

void AutogradSuite::TearDown() {
  if (started() && cluster().serves(0)) {
    for (int rank = 0; rank < 3; ++rank) {
      if (!cluster().serves(rank)) continue;
      EXPECT_TRUE(eventually([&] { return w0().rpc_sync(rank, watched_alive) == 0; }))
          << "something keeps a context on w" << rank;
    }
  }
  ClusterSuite::TearDown();
}

}  // namespace farspan::testing
