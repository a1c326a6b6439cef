#include <farspan/c10d/group/start.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/fnv1a.h>
#include <farspan/c10d/group/device_streams.h>

namespace farspan::dist {

using at::Tensor;

Start::Start(Op op, const Group& group, std::string_view called)
    : called_(called.empty() ? name_of(op) : called) {
  signature_.op = op;
  group_ = group_or_default(group, called_);
  named([&] { group_->backend(); });
}

void Start::refuse(const std::string& what, const char* advice) const {
  throw Error(Code::kInvalidArgument, what).operation(operation()).advice(advice);
}

void Start::see(const Tensor& tensor, std::string_view name) {
  check_tensor(tensor, operation(), name);
  std::optional<c10::Device> device;
  if (!tensor.is_cpu() && takes_devices(group_->backend(), tensor.device().type())) {
    device = tensor.device();
  }
  if (std::exchange(has_seen_, true) && device != device_) {
    refuse(std::string(name) + " is on " + tensor.device().str() + ", and another tensor on " +
               (device_ ? device_->str() : "the processor"),
           "give tensors of one device");
  }
  if (device && device != device_) {
    named([&] { group_->backend().check_device(current_native_stream(*device)); });
  }
  device_ = device;
  signature_.on_device = device.has_value();
}

Start& Start::tensor(const Tensor& tensor, std::string_view name) {
  see(tensor, name);
  signature_.type = static_cast<uint8_t>(dtype_of(tensor));
  signature_.count = static_cast<uint64_t>(tensor.numel());
  set_shape(signature_, tensor.sizes());
  return *this;
}

Start& Start::sparse(at::IntArrayRef shape, int64_t sparse_dim) {
  own_sizes();
  signature_.count = static_cast<uint64_t>(c10::multiply_integers(shape));
  signature_.sizes_hash = static_cast<uint64_t>(sparse_dim);
  set_shape(signature_, shape);
  return *this;
}

Start& Start::also(const Tensor& tensor, std::string_view name) {
  see(tensor, name);
  if (static_cast<uint8_t>(dtype_of(tensor)) != signature_.type) {
    refuse(std::string(name) + " is of " + std::string(name_of(dtype_of(tensor))) +
               ", and the other tensor of " +
               std::string(name_of(static_cast<DType>(signature_.type))),
           "convert one of them");
  }
  return *this;
}

Start& Start::list(const std::vector<Tensor>& tensors, std::string_view name) {
  if (tensors.size() != static_cast<size_t>(size())) {
    refuse(std::string(name) + " has " + std::to_string(tensors.size()) +
               " tensors, and the group " + std::to_string(size()) + " ranks",
           "give one for each rank");
  }
  for (const Tensor& one : tensors) also(one, name);
  return *this;
}

Start& Start::shapes_of(const std::vector<Tensor>& tensors) {
  bool equal = true;
  Fnv1a hash;
  uint64_t total = 0;
  for (const Tensor& one : tensors) {
    equal = equal && one.sizes() == tensors.front().sizes();
    hash.add(static_cast<uint64_t>(one.numel()));
    total += static_cast<uint64_t>(one.numel());
  }
  own_sizes();
  if (equal) {
    signature_.count = static_cast<uint64_t>(tensors.front().numel());
    set_shape(signature_, tensors.front().sizes());
  } else {
    signature_.count = total;
    signature_.sizes_hash = hash.value() | 1;
  }
  return *this;
}

Start& Start::number_and_shapes_of(const std::vector<Tensor>& tensors) {
  Fnv1a hash;
  hash.add(tensors.size());
  uint64_t total = 0;
  for (const Tensor& one : tensors) {
    hash.add(static_cast<uint64_t>(one.numel()));
    total += static_cast<uint64_t>(one.numel());
  }
  own_sizes();
  signature_.count = total;
  signature_.sizes_hash = hash.value() | 1;
  return *this;
}

Start& Start::own_sizes() {
  signature_.count = 0;
  signature_.dims = 0;
  signature_.shape = {};
  return *this;
}

Start& Start::root(int global_rank) {
  named([&] { signature_.root = group_->group_rank(global_rank); });
  return *this;
}

Start& Start::writes(const std::vector<Tensor>& tensors) {
  named([&] {
    for (const Tensor& one : tensors) check_written(one);
  });
  return *this;
}

Start& Start::reduction(const ReduceOp& op) {
  signature_.reduce = op.kind;
  factor_ = op.factor;
  const auto type = static_cast<DType>(signature_.type);
  std::string why = why_not(op.kind, type);
  if (!why.empty()) refuse(why, "convert the tensor, or use another ReduceOp");
  if (device_) why = group_->backend().why_not_on_device(op.kind, type);
  if (!why.empty()) refuse(why, "use .cpu(), another ReduceOp, or a group of the cpu backend");
  return *this;
}

TensorBlocks Start::hold_list(const std::vector<Tensor>& tensors, TensorBlock::Use use) {
  const bool one_size = std::ranges::all_of(
      tensors, [&](const Tensor& one) { return one.numel() == tensors.front().numel(); });
  if (!device_ || !one_size) return hold<TensorBlocks>(tensors, use);
  return named([&] { return this->use(TensorBlocks::in_one_piece(tensors, use)); });
}

std::vector<size_t> Start::equal_parts(const Tensor& whole, const Tensor& part,
                                       std::string_view name) const {
  if (whole.numel() != part.numel() * size()) {
    refuse(std::string(name) + " has " + std::to_string(whole.numel()) + " elements, and not " +
           std::to_string(size()) + " times " + std::to_string(part.numel()));
  }
  return std::vector<size_t>(static_cast<size_t>(size()), static_cast<size_t>(part.numel()));
}

void Start::same_count(const Tensor& one, const Tensor& other, std::string_view what) const {
  if (one.numel() == other.numel()) return;
  refuse(std::string(what) + " have " + std::to_string(one.numel()) + " and " +
         std::to_string(other.numel()) + " elements");
}

}  // namespace farspan::dist
