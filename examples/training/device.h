// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Device: where a process of a job trains.
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace training {

// Of what --device says. The processes of a host share out its GPUs.
//
// Threading: a value.
class Device {
 public:
  //   kind    "cpu" or "cuda"
  //   throws  farspan::Error kUnavailable: no GPU, or a build without CUDA
  explicit Device(const std::string& kind);

  c10::Device own() const noexcept { return own_; }
  // For init_process_group(): "nccl" where each process of this host has a GPU of its own, which
  // NCCL asks for.
  std::string backend() const { return by_nccl_ ? "nccl" : "cpu"; }

 private:
  c10::Device own_;
  bool by_nccl_ = false;
};

}  // namespace training
