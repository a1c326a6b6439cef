// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Transfer: one message of a tensor, from the checks of its arguments to its end.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>

#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {

// Checked, and not begun. begin() may be called once.
//
// Threading: a value; used by one thread.
class Transfer {
 public:
  // Tags below zero are the library's own.
  Transfer(P2POp::Kind kind, const at::Tensor& tensor, int peer, const MessageOptions& options);

  Work begin();
  // Begins, and waits; returns the rank, in the default group, at the other end.
  int finish();

 private:
  class State;
  Future<int> call_backend();
  int end(const Future<int>& done);

  P2POp::Kind kind_;
  Group group_;
  Signature signature_;
  Message message_;
  TensorBlock data_;
  TimePoint called_ = Clock::now();
  uint64_t record_ = 0;
};

}  // namespace farspan::dist
