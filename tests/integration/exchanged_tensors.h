// Tensors that workers send each other, and whose every byte the receiver checks.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include <farspan/rpc/shared_tensor.h>

namespace farspan::testing {

inline at::Tensor pattern(int64_t seed, int64_t count) {
  return at::arange(seed, seed + count, at::kLong);
}
inline at::Tensor shared_pattern(int64_t seed, int64_t count) {
  at::Tensor tensor = empty_shared({count}, at::kLong);
  at::arange_out(tensor, seed, seed + count, 1);
  return tensor;
}

inline std::atomic<int64_t> checked{0}, wrong{0};  // tensors that came here
inline std::vector<int64_t> findings() { return {checked, wrong}; }

// For workers to call: takes the pattern of `seed`, and returns the next one.
inline at::Tensor exchange(const at::Tensor& x, int64_t seed) {
  wrong += !at::equal(x, pattern(seed, x.numel()));
  ++checked;
  return pattern(seed + 1, x.numel());
}

}  // namespace farspan::testing
