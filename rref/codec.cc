#include <farspan/rref/codec.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <farspan/c10d/values/device_tensors.h>
#include <farspan/rpc/call_scope.h>

namespace farspan::rref {
namespace {

CallScope& call_of(ValueScope* scope) {
  if (auto* call = dynamic_cast<CallScope*>(scope)) return *call;
  throw BadValue(Code::kInvalidArgument,
                 "a remote reference travels in calls only: it cannot be written elsewhere");
}

}  // namespace

void write_handle(farspan::schema::Value::Builder out, const Handle& handle, Writer& writer) {
  CallScope& call = call_of(writer.scope());
  RRefTable& table = handle.table();
  const int to = call.peer();
  const ForkData data = table.fork(handle, to);
  call.on_outcome([owner = table.shared_from_this(), to, fork = data.fork](bool arrived) {
    owner->carrier_ended(to, fork, arrived);
  });
  const auto bytes = encode(data);
  auto value = out.initHandle();
  value.setKind(kHandleKind);
  value.setData({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
}

std::shared_ptr<Handle> read_handle(farspan::schema::Value::Reader in, Reader& reader) {
  if (!in.isHandle() || in.getHandle().getKind() != kHandleKind) throw_mismatch("rref", in);
  CallScope& call = call_of(reader.scope());
  const auto bytes = in.getHandle().getData();
  const ForkData data =
      decode_fork({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()});
  RRefTable& table = RRefTable::of(call.worker());
  auto handle = table.received(call.peer(), data);
  if (!table.confirmed(*handle)) call.wait_first(table.confirmation(*handle));
  return handle;
}

int place_of(at::Device device) {
  if (device.is_cpu()) return DeviceTensors::kCpu;
  if (device.has_index()) return device.index();
  return c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

at::Tensor moved_to(at::Device device, const at::Tensor& tensor) {
  try {
    return tensor.to(device, tensor.scalar_type());
  } catch (const c10::Error& failure) {
    throw Error(Code::kUnavailable, failure.what_without_backtrace())
        .operation("to_here(" + device.str() + ")");
  }
}

}  // namespace farspan::rref
