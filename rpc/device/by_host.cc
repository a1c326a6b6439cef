#include <farspan/rpc/device/by_host.h>

#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/device/device_map.h>
#include <farspan/c10d/device/host_copies.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

using End = device::HostCopies::End;

Error too_late(const std::string& operation, const std::string& what) {
  return Error(Code::kTimeout, what)
      .operation(operation)
      .advice("find out what the device is busy with, or give the call more time");
}

}  // namespace

Buffer copy_to_host(DeviceRoom& room, device::Stream stream, const void* memory, size_t bytes,
                    Deadline deadline) {
  const auto late = [&] {
    return too_late("copy a tensor to the host",
                    "what " + device::Place{stream.device}.text() + " is at was not done in time");
  };
  Buffer there = room.worker().messenger().allocate(bytes);
  room.release_idle();
  const End end =
      room.host_copies().from_device(stream, there.data(), memory, there.size(), deadline);
  if (end == End::kLate) throw late();
  if (end == End::kDone) return there;
  device::Devices& devices = room.devices();
  // So that the copy, which the calling thread may have to wait for, is done at once.
  if (!devices.synchronize(stream, deadline)) throw late();
  devices.copy(stream, there.data(), memory, there.size());
  if (devices.synchronize(stream, deadline)) return there;
  devices.then(stream, [there] {});  // the device may write there still
  throw late();
}

void copy_from_host(DeviceRoom& room, device::Stream stream, void* memory, const Buffer& bytes,
                    Deadline deadline) {
  room.release_idle();
  const End end =
      room.host_copies().to_device(stream, memory, bytes.data(), bytes.size(), deadline);
  if (end == End::kDone) return;
  if (end == End::kLate) {
    throw too_late("copy a tensor from the host",
                   device::Place{stream.device}.text() + " did not take a tensor in time");
  }
  // So that the copy, which the calling thread may have to wait for, is done at once.
  if (!room.devices().synchronize(stream, deadline)) {
    throw too_late("copy a tensor from the host",
                   "what " + device::Place{stream.device}.text() + " is at was not done in time");
  }
  // A small segment is a part of its frame, which may go before the stream has come so far.
  const Buffer kept = bytes.owner() ? bytes : Buffer::copy_of(bytes.span());
  room.devices().copy(stream, memory, kept.data(), kept.size());
  room.devices().then(stream, [kept] {});
}

}  // namespace farspan
