// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Tensors of devices by way of the processor's memory, where they cannot go straight.
#pragma once

#include <cstddef>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>

namespace farspan {

class DeviceRoom;

// Both throw Error kTimeout: the device was not done by the deadline; else as Devices.

// Blocks until `stream` has come so far, and all is there.
Buffer copy_to_host(DeviceRoom& room, device::Stream stream, const void* memory, size_t bytes,
                    Deadline deadline);
// Blocks until all but the end is on the device; `stream` does the rest.
void copy_from_host(DeviceRoom& room, device::Stream stream, void* memory, const Buffer& bytes,
                    Deadline deadline);

}  // namespace farspan
