// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DevicePlaces by LibTorch's streams.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include <farspan/c10d/group/device_place.h>
#include <farspan/c10d/group/process_group.h>

namespace farspan::dist {

// Whether `backend` takes memory of devices of this type.
bool takes_devices(const Backend& backend, c10::DeviceType type);

device::Stream current_native_stream(c10::Device device);

// That of this group.
std::shared_ptr<const DevicePlace> place_of(ProcessGroup& group, c10::Device device);

}  // namespace farspan::dist
