// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// A C++ value as one tensor of bytes, which collectives can carry, and back.
#pragma once

#include <ATen/core/TensorBody.h>

#include <functional>
#include <string_view>

#include <farspan/c10d/values/codec.h>
#include <farspan/c10d/values/message.h>

namespace farspan::dist {

namespace detail {

// The message and its segments in one piece: uint8 [bytes].
at::Tensor pack(const std::function<void(schema::Value::Builder, Writer&)>& write,
                std::string_view what);
// Calls `read` with what was packed.
//   throws  Error kCorrupt: bytes that pack() has not made; what `read` throws
void unpack(const at::Tensor& bytes,
            const std::function<void(schema::Value::Reader, Reader&)>& read, std::string_view what);

}  // namespace detail

//   throws  Error kInvalidArgument: the value does not travel
template <class T>
at::Tensor pack_value(const T& value, std::string_view what) {
  return detail::pack(
      [&](schema::Value::Builder out, Writer& writer) { Codec<T>::write(out, value, writer); },
      what);
}

//   throws  Error kInvalidArgument: the value is of another type; kCorrupt
template <class T>
T unpack_value(const at::Tensor& bytes, std::string_view what) {
  std::optional<T> value;
  detail::unpack(
      bytes,
      [&](schema::Value::Reader in, Reader& reader) { value.emplace(Codec<T>::read(in, reader)); },
      what);
  return std::move(*value);
}

}  // namespace farspan::dist
