// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// OptimizerSpec: one of LibTorch's optimizers with its options, as it travels to the owners of the
// parameters.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <farspan/c10d/values/codec.h>

namespace farspan::optim {

struct OptimizerSpec {
  std::string kind;  // "SGD"
  std::map<std::string, double>
      options;  // by the names of torch::optim's options; bools as 0 and 1
};
FARSPAN_STRUCT(OptimizerSpec, kind, options);

OptimizerSpec spec_of(const torch::optim::SGDOptions& options);
OptimizerSpec spec_of(const torch::optim::AdamOptions& options);
OptimizerSpec spec_of(const torch::optim::AdamWOptions& options);
OptimizerSpec spec_of(const torch::optim::AdagradOptions& options);
OptimizerSpec spec_of(const torch::optim::RMSpropOptions& options);

// Parameters of one worker; with options of their own, or the optimizer's.
struct LocalGroup {
  std::vector<at::Tensor> parameters;
  std::optional<OptimizerSpec> options;
};

//   throws  Error kInvalidArgument: an unknown kind, a group of another kind, or what LibTorch
//           refuses (a negative learning rate, a parameter that is no leaf)
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSpec& defaults,
                                                        const std::vector<LocalGroup>& groups);

// The options type of an optimizer that can be distributed. LBFGS cannot: it calls the model again
// and again within one step.
template <class Opt>
struct OptionsOf;
template <>
struct OptionsOf<torch::optim::SGD> {
  using type = torch::optim::SGDOptions;
};
template <>
struct OptionsOf<torch::optim::Adam> {
  using type = torch::optim::AdamOptions;
};
template <>
struct OptionsOf<torch::optim::AdamW> {
  using type = torch::optim::AdamWOptions;
};
template <>
struct OptionsOf<torch::optim::Adagrad> {
  using type = torch::optim::AdagradOptions;
};
template <>
struct OptionsOf<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropOptions;
};

template <class Opt>
concept Distributable = requires {
  typename OptionsOf<Opt>::type;
};

}  // namespace farspan::optim
