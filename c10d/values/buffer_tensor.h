// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Tensors whose storage is a Buffer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <farspan/c10d/base/buffer.h>

namespace farspan {

// A tensor over the buffer's bytes, which it keeps; like any other, its storage can be resized.
//   strides  empty: contiguous
at::Tensor tensor_over(const Buffer& buffer, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype);

// The Buffer that such a storage keeps; null: it is another one.
const Buffer* buffer_under(const c10::Storage& storage) noexcept;

}  // namespace farspan
