#include <farspan/rpc/device/probe.h>

#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/device/ended_by_task.h>

namespace farspan {

Probe Probe::of(const wire::InFrame& frame) {
  Probe probe;
  guard_read([&] {
    MetaReader reader(frame.meta.span());
    const auto said = reader.root<schema::DeviceProbe>();
    if (said.hasFrom()) probe.from = read_export(said.getFrom());
    probe.there = said.getThere();
    probe.number = said.getNumber();
    probe.if_in_use = said.getIfInUse();
  });
  return probe;
}

bool Probe::was_tried(const wire::InFrame& answer) {
  bool is_not_in_use = false;
  guard_read([&] {
    MetaReader reader(answer.meta.span());
    is_not_in_use = reader.root<schema::DeviceProbed>().getIsNotInUse();
  });
  return !is_not_in_use;
}

std::shared_ptr<Spot> Spot::make(DeviceRoom& room, int device) {
  return ended_by_task(room, std::make_unique<Spot>(room.devices(), device));
}

Spot::Spot(device::Devices& devices, int device)
    : devices_(devices), stream_(devices.new_stream(device)) {
  try {
    memory_ = devices_.allocate(device, kBytes);
    number_ = static_cast<uint64_t*>(devices_.allocate_host(kBytes));
  } catch (...) {
    if (memory_) devices_.release(memory_);
    devices_.end_stream(stream_);
    throw;
  }
}

Spot::~Spot() {
  if (!finish(devices_, stream_)) return;  // the device hangs, and would write there
  devices_.release(memory_);
  devices_.release_host(number_);
}

}  // namespace farspan
