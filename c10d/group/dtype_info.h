// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What backends need to know of element types, which know nothing of LibTorch.
#pragma once

#include <cstddef>
#include <string_view>

#include <farspan/c10d/values/value.capnp.h>

namespace farspan::dist {

using DType = schema::DType;

// "float32", as PyTorch's Python names it.
std::string_view name_of(DType type) noexcept;

// Bytes of one element, of the packed types too: one byte of those holds several numbers.
size_t size_of(DType type) noexcept;

}  // namespace farspan::dist
