// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codecs of LibTorch's types: Tensor, Scalar, ScalarType, Device. A tensor is an index here; its
// shape and its bytes are the business of tensor_codec.h. What they throw, and threading: codec.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include <farspan/c10d/values/codec_simple.h>

namespace farspan {

template <>
struct Codec<at::Tensor> {
  static std::string type_name() { return "tensor"; }
  static void write(schema::Value::Builder out, const at::Tensor& value, Writer& writer) {
    out.setTensor(writer.add(value));
  }
  static at::Tensor read(schema::Value::Reader in, Reader& reader) {
    if (!in.isTensor()) throw_mismatch("tensor", in);
    return reader.tensor(in.getTensor());
  }
};

// A number of whatever kind: bool, integer, floating, complex. Symbolic ones are refused.
template <>
struct Codec<at::Scalar> {
  static std::string type_name() { return "scalar"; }
  static void write(schema::Value::Builder out, const at::Scalar& value, Writer& writer);
  static at::Scalar read(schema::Value::Reader in, Reader& reader);
};

template <>
struct Codec<at::ScalarType> {
  static std::string type_name() { return "dtype"; }
  static void write(schema::Value::Builder out, at::ScalarType value, Writer& writer);
  static at::ScalarType read(schema::Value::Reader in, Reader& reader);
};

// By its name, "cpu" or "cuda:1". Whether there is such a device here is not looked at.
template <>
struct Codec<at::Device> {
  static std::string type_name() { return "device"; }
  static void write(schema::Value::Builder out, const at::Device& value, Writer& writer);
  static at::Device read(schema::Value::Reader in, Reader& reader);
};

}  // namespace farspan
