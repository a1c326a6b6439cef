// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ModuleState: the tensors of a module that data-parallel ranks keep equal.
#pragma once

#include <functional>
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
  struct Kind {
    at::ScalarType type;
    std::vector<int64_t> shape;
    at::Device device;
  };
  std::vector<Kind> kinds;  // of parameters, when they were read
  // All other tensors that rank 0 gives to the others: the memory of the module's own.
  std::vector<at::Tensor> frozen, own_frozen;
  std::vector<at::Tensor> buffers, own_buffers;

  std::vector<at::Tensor> all() const;
  // Since it was read the module's tensors may have got other memory: torch::load() does that.
  //   throws  Error kInvalidArgument: a parameter is of another kind now: names it
  void follow();
  // "'fc.weight', 'fc.bias' and 5 others", for errors.
  std::string names_of(const std::vector<size_t>& parameters) const;
};

//   throws  Error kInvalidArgument: no parameter requires a gradient, two are on different devices,
//           one is not defined or has elements that share memory, or a name in `options` is not one
//           of the module's
ModuleState read_module(const torch::nn::Module& module, const DdpOptions& options);

// Reads it on all ranks, and compares what they have: number, names, dtypes, shapes and strides,
// and options.
//   read    gives this rank's
//   throws  Error, on all ranks or none: what `read` throws on one of them, whose number the others
//           name; kShapeMismatch: names the first difference
ModuleState read_on_all_ranks(const std::function<ModuleState()>& read, const DdpOptions& options,
                              const Group& group);

// Those of rank `src`, counted in the group, come to all. Small ones go together.
void broadcast_tensors(const std::vector<at::Tensor>& tensors, int src, const Group& group);

}  // namespace farspan::dist
