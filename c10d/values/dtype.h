// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The element types of tensors, as LibTorch and as the wire number them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

// Nothing for a type that does not travel (quantized ones), or that this version does not know.
std::optional<schema::DType> dtype_to_wire(c10::ScalarType type) noexcept;
std::optional<c10::ScalarType> dtype_from_wire(schema::DType type) noexcept;

}  // namespace farspan
