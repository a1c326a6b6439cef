#include <farspan/rpc/device/device_bytes.h>

#include <cstring>

#include <farspan/c10d/base/error.h>

namespace farspan {
namespace {

void write_name(capnp::Data::Builder out, const device::MemoryName& name) {
  std::memcpy(out.begin(), name.data(), name.size());
}

device::MemoryName read_name(capnp::Data::Reader in) {
  device::MemoryName name;
  if (in.size() != name.size()) throw Error(Code::kCorrupt, "a name of a wrong length");
  std::memcpy(name.data(), in.begin(), name.size());
  return name;
}

}  // namespace

void write_export(const device::Export& from, schema::DeviceBytes::Builder out) {
  out.setDevice(static_cast<int16_t>(from.device));
  out.setRegion(from.region);
  write_name(out.initMemory(static_cast<unsigned>(from.memory.size())), from.memory);
  out.setRegionBase(from.region_base);
  out.setRegionBytes(from.region_bytes);
  out.setOffset(from.offset);
  out.setBytes(from.bytes);
  out.setEvent(from.event);
  out.setLending(from.id);
  write_name(out.initWritten(static_cast<unsigned>(from.written.size())), from.written);
}

device::Export read_export(schema::DeviceBytes::Reader in) {
  device::Export from;
  from.device = in.getDevice();
  from.region = in.getRegion();
  from.memory = read_name(in.getMemory());
  from.region_base = in.getRegionBase();
  from.region_bytes = in.getRegionBytes();
  from.offset = in.getOffset();
  from.bytes = in.getBytes();
  from.event = in.getEvent();
  from.id = in.getLending();
  from.written = read_name(in.getWritten());
  return from;
}

void write_lendings(const std::vector<uint64_t>& lendings, capnp::List<uint64_t>::Builder out) {
  for (unsigned i = 0; i < out.size(); ++i) out.set(i, lendings[i]);
}

std::vector<uint64_t> read_lendings(capnp::List<uint64_t>::Reader in) {
  std::vector<uint64_t> lendings;
  for (const uint64_t one : in) lendings.push_back(one);
  return lendings;
}

}  // namespace farspan
