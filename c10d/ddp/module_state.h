// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ModuleState: the tensors of a module that data-parallel ranks keep equal.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <farspan/c10d/ddp/options.h>

namespace torch::nn {
class Module;
}

namespace farspan::dist {

// Threading: a value; its tensors are the module's.
struct ModuleState {
  std::string type;  // of the module
  // That get gradients; a parameter that has two names is there once.
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<bool> sparse;  // its gradients are
  // All other tensors that rank 0 gives to the others.
  std::vector<at::Tensor> frozen;
  std::vector<at::Tensor> buffers;

  std::vector<at::Tensor> all() const;
  // "'fc.weight', 'fc.bias' and 5 others", for errors.
  std::string names_of(const std::vector<size_t>& parameters) const;
};

//   throws  Error kInvalidArgument: no parameter requires a gradient, one is not on the CPU or not
//           defined, or a name in `options` is not one of the module's
ModuleState read_module(const torch::nn::Module& module, const DdpOptions& options);

// Compares what all ranks have: number, names, dtypes, shapes and strides, and options.
//   throws  Error kShapeMismatch, on all ranks: names the first difference
void check_same_on_all_ranks(const ModuleState& state, const DdpOptions& options,
                             const Group& group);

// Those of rank `src`, counted in the group, come to all. Small ones go together.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, int src, const Group& group);

}  // namespace farspan::dist
