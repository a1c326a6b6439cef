// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// How references travel inside arguments and results.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <farspan/c10d/values/value_io.h>
#include <farspan/rref/table.h>

namespace farspan::rref {

inline constexpr uint16_t kHandleKind = 1;  // of Value.handle

// Passes the reference on to the worker that the message goes to.
//   throws  BadValue: outside of a call; Error: the reference cannot be passed on (any more)
void write_handle(farspan::schema::Value::Builder out, const Handle& handle, Writer& writer);

// Takes the reference over. The function that it is an argument of runs once the owner knows.
std::shared_ptr<Handle> read_handle(farspan::schema::Value::Reader in, Reader& reader);

// The place, as DeviceTensors has it, of a device of this process; the current one, if it has no
// number.
int place_of(at::Device device);
// The same values there; the tensor itself if it is there already.
//   throws  Error kUnavailable: there is no such device, or it has failed
at::Tensor moved_to(at::Device device, const at::Tensor& tensor);

}  // namespace farspan::rref
