#include <farspan/optim/optimizer_spec.h>

#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::optim {

OptimizerSpec spec_of(const torch::optim::SGDOptions& o) {
  return {"SGD",
          {{"lr", o.lr()},
           {"momentum", o.momentum()},
           {"dampening", o.dampening()},
           {"weight_decay", o.weight_decay()},
           {"nesterov", o.nesterov()}}};
}

OptimizerSpec spec_of(const torch::optim::AdamOptions& o) {
  return {"Adam",
          {{"lr", o.lr()},
           {"beta1", std::get<0>(o.betas())},
           {"beta2", std::get<1>(o.betas())},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"amsgrad", o.amsgrad()}}};
}

OptimizerSpec spec_of(const torch::optim::AdamWOptions& o) {
  return {"AdamW",
          {{"lr", o.lr()},
           {"beta1", std::get<0>(o.betas())},
           {"beta2", std::get<1>(o.betas())},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"amsgrad", o.amsgrad()}}};
}

OptimizerSpec spec_of(const torch::optim::AdagradOptions& o) {
  return {"Adagrad",
          {{"lr", o.lr()},
           {"lr_decay", o.lr_decay()},
           {"weight_decay", o.weight_decay()},
           {"initial_accumulator_value", o.initial_accumulator_value()},
           {"eps", o.eps()}}};
}

OptimizerSpec spec_of(const torch::optim::RMSpropOptions& o) {
  return {"RMSprop",
          {{"lr", o.lr()},
           {"alpha", o.alpha()},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"momentum", o.momentum()},
           {"centered", o.centered()}}};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSpec& spec,
                                                        std::vector<at::Tensor> parameters) {
  const auto get = [&](const char* name) {
    const auto found = spec.options.find(name);
    if (found != spec.options.end()) return found->second;
    throw Error(Code::kInvalidArgument, spec.kind + " without its option '" + name + "'");
  };
  const auto flag = [&](const char* name) { return get(name) != 0; };
  using namespace torch::optim;
  if (spec.kind == "SGD") {
    return std::make_unique<SGD>(std::move(parameters), SGDOptions(get("lr"))
                                                            .momentum(get("momentum"))
                                                            .dampening(get("dampening"))
                                                            .weight_decay(get("weight_decay"))
                                                            .nesterov(flag("nesterov")));
  }
  const auto betas = [&] { return std::make_tuple(get("beta1"), get("beta2")); };
  if (spec.kind == "Adam") {
    return std::make_unique<Adam>(std::move(parameters), AdamOptions(get("lr"))
                                                             .betas(betas())
                                                             .eps(get("eps"))
                                                             .weight_decay(get("weight_decay"))
                                                             .amsgrad(flag("amsgrad")));
  }
  if (spec.kind == "AdamW") {
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(get("lr"))
                                                              .betas(betas())
                                                              .eps(get("eps"))
                                                              .weight_decay(get("weight_decay"))
                                                              .amsgrad(flag("amsgrad")));
  }
  if (spec.kind == "Adagrad") {
    return std::make_unique<Adagrad>(
        std::move(parameters), AdagradOptions(get("lr"))
                                   .lr_decay(get("lr_decay"))
                                   .weight_decay(get("weight_decay"))
                                   .initial_accumulator_value(get("initial_accumulator_value"))
                                   .eps(get("eps")));
  }
  if (spec.kind == "RMSprop") {
    return std::make_unique<RMSprop>(std::move(parameters), RMSpropOptions(get("lr"))
                                                                .alpha(get("alpha"))
                                                                .eps(get("eps"))
                                                                .weight_decay(get("weight_decay"))
                                                                .momentum(get("momentum"))
                                                                .centered(flag("centered")));
  }
  throw Error(Code::kInvalidArgument, "no optimizer is called '" + spec.kind + "'")
      .advice("use SGD, Adam, AdamW, Adagrad or RMSprop");
}

}  // namespace farspan::optim
