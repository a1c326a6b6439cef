#include <farspan/autograd/roots.h>

#include <sstream>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <farspan/c10d/base/error.h>

namespace farspan::dist_autograd {
namespace {

template <class... Parts>
Error bad_root(Code code, size_t index, const Parts&... parts) {
  std::ostringstream text;
  text << "root " << index << ' ';
  (text << ... << parts);
  return Error(code, text.str()).operation("backward");
}

at::Tensor gradient_of_one(const at::Tensor& root, size_t index) {
  if (root.numel() != 1) {
    throw bad_root(Code::kInvalidArgument, index, "has shape ", root.sizes(), ", not one element")
        .advice("reduce it to a scalar, or give its gradient");
  }
  if (!at::isFloatingType(root.scalar_type())) {
    throw bad_root(Code::kInvalidArgument, index, "is ", root.scalar_type(), ", not a real number")
        .advice("give its gradient");
  }
  return at::ones_like(root, LEGACY_CONTIGUOUS_MEMORY_FORMAT);
}

}  // namespace

std::vector<Root> make_roots(const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& gradients) {
  if (roots.empty()) {
    throw Error(Code::kInvalidArgument, "no roots").operation("backward").advice("give the loss");
  }
  if (!gradients.empty() && gradients.size() != roots.size()) {
    std::ostringstream text;
    text << roots.size() << " roots but " << gradients.size() << " gradients";
    throw Error(Code::kInvalidArgument, text.str()).operation("backward");
  }
  torch::autograd::edge_list edges;
  torch::autograd::variable_list values;
  for (size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    if (!root.defined()) throw bad_root(Code::kInvalidArgument, i, "is undefined");
    if (!root.requires_grad()) {
      throw bad_root(Code::kInvalidArgument, i, "does not require a gradient and has no grad_fn")
          .advice("compute it, with gradients enabled, from tensors that require one");
    }
    const bool given = i < gradients.size() && gradients[i].defined();
    if (given && gradients[i].sizes() != root.sizes()) {
      throw bad_root(Code::kShapeMismatch, i, "has shape ", root.sizes(), ", its gradient ",
                     gradients[i].sizes());
    }
    values.push_back(given ? gradients[i] : gradient_of_one(root, i));
    edges.push_back(torch::autograd::impl::gradient_edge(root));
  }
  try {  // also converts a gradient of another dtype or device where LibTorch would
    torch::autograd::validate_outputs(
        edges, values, [](const std::string& what) { return "backward was given an " + what; });
  } catch (const c10::Error& failure) {
    throw Error(Code::kInvalidArgument, failure.what_without_backtrace()).operation("backward");
  }
  std::vector<Root> result;
  for (size_t i = 0; i < roots.size(); ++i) {
    result.push_back({std::move(edges[i]), std::move(values[i])});
  }
  return result;
}

}  // namespace farspan::dist_autograd
