// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// BorrowedTensors: the tensors whose bytes a message refers to, and how they were then.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace farspan {

// Notices changes in place, as LibTorch counts them for autograd: through any view, but not those
// that go round the counter (.data(), inference mode). Costs nothing while it is empty.
//
// Threading: changed() by any thread, once all were added. Keeps no tensor alive.
class BorrowedTensors {
 public:
  //   number  what changed() calls it
  void add(const at::Tensor& tensor, size_t number) {
    const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
    if (version.enabled()) borrowed_.push_back({version, version.current_version(), number});
  }

  // The first that is not what it was; none: all are.
  std::optional<size_t> changed() const {
    for (const Borrowed& each : borrowed_) {
      if (each.counter.current_version() != each.version) return each.number;
    }
    return std::nullopt;
  }

 private:
  struct Borrowed {
    c10::VariableVersion counter;  // shared with the tensor and its views
    uint32_t version;
    size_t number;
  };
  std::vector<Borrowed> borrowed_;
};

}  // namespace farspan
