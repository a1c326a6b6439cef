// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// How references travel inside arguments and results.
#pragma once

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

}  // namespace farspan::rref
