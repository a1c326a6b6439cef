#include <farspan/optim/optimizer_spec.h>

#include <tuple>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::optim {

using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

OptimizerSpec spec_of(const SGDOptions& o) {
  return {"SGD",
          {{"lr", o.lr()},
           {"momentum", o.momentum()},
           {"dampening", o.dampening()},
           {"weight_decay", o.weight_decay()},
           {"nesterov", o.nesterov()}}};
}

OptimizerSpec spec_of(const AdamOptions& o) {
  return {"Adam",
          {{"lr", o.lr()},
           {"beta1", std::get<0>(o.betas())},
           {"beta2", std::get<1>(o.betas())},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"amsgrad", o.amsgrad()}}};
}

OptimizerSpec spec_of(const AdamWOptions& o) {
  return {"AdamW",
          {{"lr", o.lr()},
           {"beta1", std::get<0>(o.betas())},
           {"beta2", std::get<1>(o.betas())},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"amsgrad", o.amsgrad()}}};
}

OptimizerSpec spec_of(const AdagradOptions& o) {
  return {"Adagrad",
          {{"lr", o.lr()},
           {"lr_decay", o.lr_decay()},
           {"weight_decay", o.weight_decay()},
           {"initial_accumulator_value", o.initial_accumulator_value()},
           {"eps", o.eps()}}};
}

OptimizerSpec spec_of(const RMSpropOptions& o) {
  return {"RMSprop",
          {{"lr", o.lr()},
           {"alpha", o.alpha()},
           {"eps", o.eps()},
           {"weight_decay", o.weight_decay()},
           {"momentum", o.momentum()},
           {"centered", o.centered()}}};
}

namespace {

// Reads a spec's options by name.
class SpecReader {
 public:
  explicit SpecReader(const OptimizerSpec& spec) : spec_(spec) {}
  double get(const char* name) const {
    const auto found = spec_.options.find(name);
    if (found != spec_.options.end()) return found->second;
    throw Error(Code::kInvalidArgument, spec_.kind + " without its option '" + name + "'");
  }
  bool flag(const char* name) const { return get(name) != 0; }
  std::tuple<double, double> betas() const { return {get("beta1"), get("beta2")}; }

 private:
  const OptimizerSpec& spec_;
};

template <class Options>
Options options_of(const OptimizerSpec& spec);

template <>
SGDOptions options_of(const OptimizerSpec& spec) {
  const SpecReader in(spec);
  return SGDOptions(in.get("lr"))
      .momentum(in.get("momentum"))
      .dampening(in.get("dampening"))
      .weight_decay(in.get("weight_decay"))
      .nesterov(in.flag("nesterov"));
}

template <class Options>
Options adam_options(const OptimizerSpec& spec) {
  const SpecReader in(spec);
  return Options(in.get("lr"))
      .betas(in.betas())
      .eps(in.get("eps"))
      .weight_decay(in.get("weight_decay"))
      .amsgrad(in.flag("amsgrad"));
}
template <>
AdamOptions options_of(const OptimizerSpec& spec) {
  return adam_options<AdamOptions>(spec);
}
template <>
AdamWOptions options_of(const OptimizerSpec& spec) {
  return adam_options<AdamWOptions>(spec);
}

template <>
AdagradOptions options_of(const OptimizerSpec& spec) {
  const SpecReader in(spec);
  return AdagradOptions(in.get("lr"))
      .lr_decay(in.get("lr_decay"))
      .weight_decay(in.get("weight_decay"))
      .initial_accumulator_value(in.get("initial_accumulator_value"))
      .eps(in.get("eps"));
}

template <>
RMSpropOptions options_of(const OptimizerSpec& spec) {
  const SpecReader in(spec);
  return RMSpropOptions(in.get("lr"))
      .alpha(in.get("alpha"))
      .eps(in.get("eps"))
      .weight_decay(in.get("weight_decay"))
      .momentum(in.get("momentum"))
      .centered(in.flag("centered"));
}

template <class Opt>
std::unique_ptr<torch::optim::Optimizer> make(const OptimizerSpec& defaults,
                                              const std::vector<LocalGroup>& groups) {
  using Options = typename OptionsOf<Opt>::type;
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const LocalGroup& group : groups) {
    if (!group.options) {
      all.emplace_back(group.parameters);
      continue;
    }
    if (group.options->kind != defaults.kind) {
      throw Error(Code::kInvalidArgument, "a group with options of " + group.options->kind +
                                              " in an optimizer of kind " + defaults.kind);
    }
    // LibTorch checks only the options of an optimizer, not those of its groups.
    const Options options = options_of<Options>(*group.options);
    Opt(std::vector<at::Tensor>(), options);
    all.emplace_back(group.parameters, std::make_unique<Options>(options));
  }
  return std::make_unique<Opt>(std::move(all), options_of<Options>(defaults));
}

std::unique_ptr<torch::optim::Optimizer> make_of_kind(const OptimizerSpec& defaults,
                                                      const std::vector<LocalGroup>& groups) {
  if (defaults.kind == "SGD") return make<torch::optim::SGD>(defaults, groups);
  if (defaults.kind == "Adam") return make<torch::optim::Adam>(defaults, groups);
  if (defaults.kind == "AdamW") return make<torch::optim::AdamW>(defaults, groups);
  if (defaults.kind == "Adagrad") return make<torch::optim::Adagrad>(defaults, groups);
  if (defaults.kind == "RMSprop") return make<torch::optim::RMSprop>(defaults, groups);
  throw Error(Code::kInvalidArgument, "no optimizer is called '" + defaults.kind + "'")
      .advice("use SGD, Adam, AdamW, Adagrad or RMSprop");
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerSpec& defaults,
                                                        const std::vector<LocalGroup>& groups) {
  try {
    return make_of_kind(defaults, groups);
  } catch (const c10::Error& e) {
    throw Error(Code::kInvalidArgument, e.what_without_backtrace())
        .operation("making the optimizer " + defaults.kind);
  }
}

}  // namespace farspan::optim
