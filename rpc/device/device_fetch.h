// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// A fetch: what another worker has lent and this one cannot open comes through the processor's
// memory, while the call that it belongs to waits.
#pragma once

#include <string>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/exports.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan {

class DeviceRoom;

// Blocks. That worker sends the next tensors from there to `here` so at once.
//   here    the device that they are for
//   why     they cannot be opened
//   throws  Error kUnavailable: that worker requires that tensors go straight; else as a call
Buffer fetch(DeviceRoom& room, int peer, const device::Export& lent, int here,
             const std::string& why, Deadline deadline);
void serve_fetch(DeviceRoom& room, agent::Request request);

}  // namespace farspan
