// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// An export of device memory, in a message.
#pragma once

#include <farspan/c10d/device/exports.h>
#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

void write_export(const device::Export& from, schema::DeviceBytes::Builder out);
//   throws  Error kCorrupt
device::Export read_export(schema::DeviceBytes::Reader in);

}  // namespace farspan
