// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SendNode, ReceiveNode: where a graph leaves a worker and where it goes on at another. A pair has
// one SendId.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <farspan/autograd/boundary.h>
#include <farspan/autograd/pass_messages.h>
#include <farspan/rpc/device_carrier.h>

namespace farspan::dist_autograd {

// Stands behind the tensors of one message; its gradients come from the receiver.
//
// Threading: as any torch::autograd::Node.
class SendNode final : public torch::autograd::Node {
 public:
  SendNode(SendId id, int peer) : id_(id), peer_(peer) {}
  SendId id() const noexcept { return id_; }
  int peer() const noexcept { return peer_; }
  std::string name() const override { return "farspan::SendNode"; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }

 private:
  const SendId id_;
  const int peer_;
};

// The grad_fn of the tensors that one message brought.
class ReceiveNode final : public Boundary {
 public:
  ReceiveNode(SendId id, int peer, MessageWay back) : id_(id), peer_(peer), back_(back) {}
  SendId id() const noexcept { return id_; }
  int peer() const noexcept { return peer_; }
  // As what the gradients travel: what a request brought goes back as its answer would.
  MessageWay back() const noexcept { return back_; }
  std::string name() const override { return "farspan::ReceiveNode"; }

 private:
  const SendId id_;
  const int peer_;
  const MessageWay back_;
};

// Joins the tensors that require a gradient to a new SendNode; null when none does.
std::shared_ptr<SendNode> record_send(SendId id, int peer, const std::vector<at::Tensor>& tensors);

// Makes those of the received tensors that require a gradient outputs of a new ReceiveNode, in the
// same order.
void record_receive(SendId id, int peer, MessageWay back, std::vector<at::Tensor*> tensors);

}  // namespace farspan::dist_autograd
