#include <farspan/autograd/send_receive.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace farspan::dist_autograd {

std::shared_ptr<SendNode> record_send(SendId id, int peer, const std::vector<at::Tensor>& tensors) {
  std::shared_ptr<SendNode> node;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (!node) {
      node = std::shared_ptr<SendNode>(new SendNode(id, peer), torch::autograd::deleteNode);
    }
    node->add_input_metadata(tensor);
    node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  }
  return node;
}

void record_receive(SendId id, int peer, MessageWay back, std::vector<at::Tensor*> tensors) {
  const std::shared_ptr<ReceiveNode> node(new ReceiveNode(id, peer, back),
                                          torch::autograd::deleteNode);
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined() || !tensor->requires_grad()) continue;
    tensor->set_requires_grad(false);  // no leaf any more
    torch::autograd::create_gradient_edge(*tensor, node);
  }
}

}  // namespace farspan::dist_autograd
