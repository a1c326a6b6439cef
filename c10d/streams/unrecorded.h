// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unrecorded: for a block that writes into a tensor of the user's, whatever that is.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace farspan {

// Autograd records nothing; leaves that require a gradient, and inference tensors, may be written.
class Unrecorded {
 public:
  explicit Unrecorded(const at::Tensor& written) : inference_(written.is_inference()) {}

 private:
  const c10::InferenceMode inference_;  // first: it turns recording on
  const at::NoGradGuard no_grad_;
};

}  // namespace farspan
