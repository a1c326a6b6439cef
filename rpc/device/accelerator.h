// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Accelerator: a kind of device that tensors of this process can be on, and travel from and to.
#pragma once

#include <c10/core/DeviceType.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <farspan/c10d/device/devices.h>

namespace farspan {

struct Accelerator {
  // LibTorch must have a DeviceGuard for it, with streams, events and native handles of streams.
  // Its hooks say what devices the process uses (hasPrimaryContext); without them none is tried
  // early.
  c10::DeviceType type;
  // The same devices, by the same numbers; null: there are none, and `why_none` says why.
  std::shared_ptr<device::Devices> devices;
  std::string why_none;
};

// Says what opens the accelerator of this process: there is one kind. A library that brings a kind
// calls it when it is loaded.
//
// Threading: any thread.
void register_accelerator(std::function<Accelerator()> open);

// Opened when this is first called. Absent: no library has brought any.
//
// Threading: any thread.
std::optional<Accelerator> registered_accelerator();

}  // namespace farspan
