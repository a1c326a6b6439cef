#include <farspan/autograd/run_node.h>

#include <stdexcept>
#include <string>
#include <typeinfo>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <farspan/c10d/base/error.h>

namespace farspan::dist_autograd {

using torch::autograd::Node;
using torch::autograd::variable_list;

variable_list run_pre_hooks(Node& node, variable_list inputs) {
  for (const auto& hook : node.tensor_pre_hooks()) inputs = (*hook)(inputs);
  for (const auto& [input, hook] : node.retains_grad_hooks()) inputs = (*hook)(inputs);
  for (const auto& hook : node.pre_hooks()) inputs = (*hook)(inputs);
  return inputs;
}

variable_list run_post_hooks(Node& node, variable_list outputs, const variable_list& inputs) {
  for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, inputs);
  return outputs;
}

void accumulate(Node& node, variable_list inputs, size_t own_references, LeafGradients& leaves) {
  const at::Tensor& leaf = static_cast<torch::autograd::AccumulateGrad&>(node).variable;
  if (inputs.size() != 1 || !inputs[0].defined()) return;
  if (leaf.grad_fn()) {
    throw std::logic_error("leaf variable has been moved into the graph interior");
  }
  if (leaf.requires_grad()) leaves.add(leaf, std::move(inputs[0]), own_references);
}

void check_outputs(Node& node, variable_list& outputs) {
  torch::autograd::validate_outputs(node.next_edges(), outputs, [&](const std::string& what) {
    return "Function " + node.name() + " returned an " + what;
  });
}

void move_to_inputs(const Node& node, variable_list& gradients) {
  for (uint32_t i = 0; i < gradients.size(); ++i) {
    const at::Device device = node.input_metadata(i).device();
    if (!gradients[i].defined() || gradients[i].device() == device) continue;
    gradients[i] = gradients[i].to(device, gradients[i].scalar_type());
  }
}

void check_gradients(Node& node, std::optional<uint32_t> input, variable_list& gradients) {
  torch::autograd::edge_list edges;
  for (uint32_t i = 0; i < gradients.size(); ++i) {
    edges.emplace_back(node.getptr(), input.value_or(i));
  }
  try {
    torch::autograd::validate_outputs(
        edges, gradients, [](const std::string& what) { return "there came an " + what; });
  } catch (const c10::Error& failure) {
    throw Error(Code::kInvalidArgument, failure.what_without_backtrace())
        .operation("backward through " + node.name());
  }
}

void check_for_nan(const Node& node, const variable_list& outputs) {
  if (!torch::autograd::AnomalyMode::should_check_nan()) return;
  const at::AutoGradMode recording(false);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && at::isnan(outputs[i]).any().item<bool>()) {
      throw std::runtime_error("Function '" + node.name() + "' returned nan values in its " +
                               std::to_string(i) + "th output.");
    }
  }
}

void throw_node_error(Node& node, const std::exception_ptr& failure) {
  if (torch::autograd::AnomalyMode::is_enabled()) node.metadata()->print_stack(node.name());
  const std::string operation = "backward through " + node.name();
  try {
    std::rethrow_exception(failure);
  } catch (Error& error) {
    if (error.operation().empty()) error.operation(operation);
    throw;
  } catch (const c10::Error& error) {
    throw Error(Code::kRemote, error.what_without_backtrace())
        .operation(operation)
        .remote_type(demangle(typeid(error).name()));
  } catch (...) {
    throw to_error(failure, Code::kRemote).operation(operation);
  }
}

}  // namespace farspan::dist_autograd
