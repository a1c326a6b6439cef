#include <farspan/rpc/device/device_fetch.h>

#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

class Fetched final : public agent::ReplyHandler {
 public:
  void on_reply(wire::InFrame&& reply) noexcept override {
    if (reply.failed()) {
      promise_.set_error(wire::decode_error(reply.meta.span()));
    } else if (reply.segments.size() != 1) {
      promise_.set_error(Error(Code::kCorrupt, "an answer without bytes"));
    } else {
      Buffer& bytes = reply.segments[0];  // a small one is a part of its frame
      promise_.set_value(bytes.owner() ? std::move(bytes) : Buffer::copy_of(bytes.span()));
    }
  }
  void on_error(const Error& why) noexcept override { promise_.set_error(why); }
  Future<Buffer> bytes() const { return promise_.future(); }

 private:
  Promise<Buffer> promise_;
};

// A stream that nothing else is given to.
class StreamOfItsOwn {
 public:
  StreamOfItsOwn(device::Devices& devices, int device)
      : devices_(devices), stream_(devices.new_stream(device)) {}
  ~StreamOfItsOwn() { devices_.end_stream(stream_); }
  StreamOfItsOwn(const StreamOfItsOwn&) = delete;
  StreamOfItsOwn& operator=(const StreamOfItsOwn&) = delete;
  device::Stream get() const noexcept { return stream_; }

 private:
  device::Devices& devices_;
  const device::Stream stream_;
};

Buffer bytes_for(DeviceRoom& room, int peer, const wire::InFrame& frame, Deadline deadline) {
  uint64_t event = 0;
  int there = 0;
  std::string why;
  guard_read([&] {
    MetaReader reader(frame.meta.span());
    const auto fetch = reader.root<schema::DeviceFetch>();
    event = fetch.getFrom().getEvent();
    there = fetch.getThere();
    why = fetch.getWhy();
  });
  const auto lent = room.exports().find(event);
  if (!lent) throw Error(Code::kCorrupt, "what is not lent any more");
  room.routes().note_not_opened(peer, lent->device, there, why);
  room.routes().refuse_if_required(peer, lent->device, there, why);
  const StreamOfItsOwn stream(room.devices(), lent->device);
  room.devices().wait(stream.get(), lent->written);
  return room.copy_to_host(stream.get(), lent->memory, lent->bytes, deadline);
}

}  // namespace

Buffer fetch(DeviceRoom& room, int peer, const device::Export& lent, int here,
             const std::string& why, Deadline deadline) {
  MetaBuilder builder;
  auto out = builder.init_root<schema::DeviceFetch>();
  write_export(lent, out.initFrom());
  out.setThere(static_cast<int16_t>(here));
  out.setWhy(why);
  const auto fetched = std::make_shared<Fetched>();
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kDeviceFetch;
  frame.header.chain = agent::current_call().chain;
  frame.meta = builder.finish();
  agent::Messenger& messenger = room.worker().messenger();
  messenger.call(peer, frame, deadline, fetched, true);
  messenger.wait(*fetched->bytes().state(), Deadline::never(), peer);  // the call has the deadline
  Buffer bytes = fetched->bytes().value();
  if (bytes.size() == lent.bytes) return bytes;
  throw Error(Code::kCorrupt, std::to_string(bytes.size()) + " bytes for " +
                                  std::to_string(lent.bytes) + " that are lent");
}

void serve_fetch(DeviceRoom& room, agent::Request request) {
  try {
    const Buffer bytes = bytes_for(room, request.from(), request.frame(), request.deadline());
    request.reply({}, {bytes});
  } catch (const Error& error) {
    request.fail(error);
  } catch (const c10::Error& error) {
    request.fail(Error(Code::kUnavailable, error.what_without_backtrace()));
  }
}

}  // namespace farspan
