// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// For what waits for a device when it ends: whoever lets go of it last may not.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include <farspan/rpc/device/device_room.h>

namespace farspan {

template <class T>
std::shared_ptr<T> ended_by_task(DeviceRoom& room, std::unique_ptr<T> made) {
  const std::weak_ptr<agent::Messenger> messenger = room.worker().share_messenger();
  return {made.release(), [messenger](T* one) {
            const std::shared_ptr<T> last(one);
            if (const auto here = messenger.lock()) here->run([last] {});
          }};
}

// Blocks until the stream has done all, and ends it.
//   returns  false: it has not by now, and may never
inline bool finish(device::Devices& devices, device::Stream stream) noexcept {
  constexpr std::chrono::seconds kWithin{10};
  bool is_done = false;
  try {
    is_done = devices.synchronize(stream, Deadline::after(kWithin));
  } catch (const Error&) {  // it has failed: what uses it is told
  }
  devices.end_stream(stream);
  return is_done;
}

}  // namespace farspan
