// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// An export of device memory, in a message.
#pragma once

#include <cstdint>
#include <vector>

#include <farspan/c10d/device/exports.h>
#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

void write_export(const device::Export& from, schema::DeviceBytes::Builder out);
//   throws  Error kCorrupt
device::Export read_export(schema::DeviceBytes::Reader in);

// Of exports: DeviceBytes.lending.
void write_lendings(const std::vector<uint64_t>& lendings, capnp::List<uint64_t>::Builder out);
std::vector<uint64_t> read_lendings(capnp::List<uint64_t>::Reader in);

}  // namespace farspan
