// The rule under test: a trainer that holds nothing but a reference to its model learns as one that
// has the model itself, to the bit.
#include "mnist/batches.h"
#include "mnist/net.h"
#include "parity/training.h"

namespace farspan::testing {
namespace {

using dist_autograd::Context;

std::shared_ptr<mnist::Net> net_on_loan;
std::shared_ptr<mnist::Net> lend_net() { return net_on_loan; }
FARSPAN_REGISTER(lend_net);
FARSPAN_REGISTER_METHODS(mnist::Net, forward, parameters);

// The parameter server of examples/, with one trainer.
TEST(TrainingOnAParameterServer, EqualsLocalTrainingStepByStep) {
  at::set_num_threads(1);
  at::manual_seed(1);
  net_on_loan = std::make_shared<mnist::Net>();
  at::manual_seed(1);
  mnist::Net local;
  Workers workers({.count = 2, .transport = "unix", .settings = {}, .reactor = {}});
  for (int rank = 0; rank < 2; ++rank) furnish(workers[rank]);
  CurrentWorker trainer(workers[1]);
  const auto net = remote(0, lend_net);
  const torch::optim::SGDOptions options(0.05);
  DistributedOptimizer<torch::optim::SGD> optimizer(parameter_rrefs(net), options);
  torch::optim::SGD local_optimizer(local.parameters(), options);

  const mnist::Batches batches(mnist::load_test(), {.batch_size = 16, .seed = 1});
  int step = 0;
  for (const auto& [images, labels] : batches.epoch(0)) {
    if (++step > 40) break;
    Context context;
    const at::Tensor loss = at::nll_loss(net.rpc_sync(&mnist::Net::forward, images), labels);
    context.backward({loss});
    optimizer.step(context);

    local_optimizer.zero_grad();
    const at::Tensor local_loss = at::nll_loss(local.forward(images), labels);
    torch::autograd::backward({local_loss});
    local_optimizer.step();

    expect_same(loss, local_loss, "loss");
    const auto ours = net_on_loan->parameters(), theirs = local.parameters();
    for (size_t p = 0; p < ours.size(); ++p) {
      expect_same(gradient_at(workers[0], context, ours[p]), theirs[p].grad(), "gradient");
      expect_same(ours[p], theirs[p], "parameter");
    }
    ASSERT_FALSE(HasFailure()) << "first in step " << step;
  }
  net_on_loan.reset();
}

}  // namespace
}  // namespace farspan::testing
