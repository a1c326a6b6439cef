#include <farspan/rpc/device/message_devices.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/local_exports.h>
#include <farspan/rpc/device/streams.h>
#include <farspan/rpc/worker.h>

namespace farspan {
// The memory itself. Who copies it within this process keeps it, too: the line may end meanwhile.
class MessageDevicesOf::Held {
 public:
  explicit Held(std::shared_ptr<DeviceRoom> room)
      : room_(std::move(room)), id_(room_->next_export()) {}
  ~Held() {
    for (const uint64_t id : local_) LocalExports::all().remove(id);
    room_->exports().taken(id_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  uint64_t id() const noexcept { return id_; }
  void add_local(uint64_t id) { local_.push_back(id); }

 private:
  const std::shared_ptr<DeviceRoom> room_;
  const uint64_t id_;
  std::vector<uint64_t> local_;
};

// What a message lends. The line keeps it until the receiver has let go.
class MessageDevicesOf::Lent final : public LentMemory {
 public:
  explicit Lent(std::shared_ptr<DeviceRoom> room) : held(std::make_shared<Held>(std::move(room))) {}
  const std::shared_ptr<Held> held;
};

MessageDevicesOf::MessageDevicesOf(std::shared_ptr<DeviceRoom> room, int peer, MessageWay way)
    : room_(std::move(room)), peer_(peer), way_(way) {}

MessageDevicesOf::~MessageDevicesOf() = default;

MessageDevicesOf::Lent& MessageDevicesOf::lent_exports() {
  if (!lent_) lent_ = std::make_shared<Lent>(room_);
  return *lent_;
}

std::shared_ptr<LentMemory> MessageDevicesOf::lent() { return std::move(lent_); }

int MessageDevicesOf::place_there(at::Device here) {
  if (place_) return room_->checked_place(peer_, *place_);
  try {
    return room_->place_there(peer_, way_, here);
  } catch (const Error&) {
    if (!host_if_unmapped_) throw;
    return kCpu;
  }
}

bool MessageDevicesOf::lend(const at::Tensor& dense, schema::DeviceBytes::Builder out) {
  DeviceRoutes& routes = room_->routes();
  const int here = dense.get_device(), there = place_there(dense.device());
  if (there == kCpu || !routes.is_direct(peer_, here, there, deadline_)) return false;
  const DeviceRoom::Reach reach = room_->reach(peer_);
  const std::shared_ptr<Held>& held = lent_exports().held;
  const device::Stream stream = current_stream(dense.device());
  auto owner = std::make_shared<c10::Storage>(dense.storage());
  const void* const bytes = dense.const_data_ptr();
  if (reach == DeviceRoom::Reach::kSameProcess) {
    const device::Event written = room_->exports().make_local(held->id(), stream, std::move(owner));
    const uint64_t id = LocalExports::all().add({bytes, dense.nbytes(), written, held});
    held->add_local(id);
    out.setRegion(id);
    out.setBytes(dense.nbytes());
    return true;
  }
  const auto made =
      room_->exports().make(held->id(), bytes, dense.nbytes(), stream, std::move(owner));
  if (!made) {
    routes.note_not_staged(peer_, here, there, dense.nbytes());
    return false;
  }
  if (made->is_staged) routes.note_staged(peer_, here, there, dense.nbytes());
  write_export(*made, out);
  return true;
}

Buffer MessageDevicesOf::copy_to_host(const at::Tensor& dense) {
  using End = device::HostCopies::End;
  const device::Stream stream = current_stream(dense.device());
  const auto too_late = [&] {
    return Error(Code::kTimeout, "what " + dense.device().str() + " is at was not done in time")
        .operation("copy a tensor to the host")
        .advice("find out what the device is busy with, or give the call more time");
  };
  Buffer bytes = room_->worker().messenger().allocate(dense.nbytes());
  const End end = room_->host_copies().from_device(stream, bytes.data(), dense.const_data_ptr(),
                                                   bytes.size(), deadline_);
  if (end == End::kLate) throw too_late();
  if (end == End::kDone) return bytes;
  device::Devices& devices = room_->devices();
  // So that the copy, which the calling thread may have to wait for, is done at once.
  if (!devices.synchronize(stream, deadline_)) throw too_late();
  devices.copy(stream, bytes.data(), dense.const_data_ptr(), bytes.size());
  if (devices.synchronize(stream, deadline_)) return bytes;
  devices.then(stream, [bytes] {});  // the device may write there still
  throw too_late();
}

at::Device MessageDevicesOf::device_here(int place) {
  const at::Device device = room_->device_here(place);
  if (!device.is_cpu()) OwnStreams::use(device);
  return device;
}

void MessageDevicesOf::borrow(const at::Tensor& dense, schema::DeviceBytes::Reader from) {
  if (dense.device().is_cpu()) throw Error(Code::kCorrupt, "device memory is lent to the CPU");
  const device::Stream stream = current_stream(dense.device());
  device::Devices& devices = room_->devices();
  if (from.hasMemory()) {
    const device::Export lent = read_export(from);
    try {
      room_->imports().copy(room_->export_key(peer_), lent, dense.mutable_data_ptr(), stream);
    } catch (const Error& error) {
      room_->close_idle_imports();  // a part may have been opened
      if (error.code() != Code::kCorrupt) {
        room_->routes().tell_unopened(peer_, lent.device, stream.device, error.message());
      }
      throw;
    }
    room_->close_idle_imports();
  } else {
    const auto local = LocalExports::all().find(from.getRegion());
    auto held = local ? local->held.lock() : nullptr;
    if (!held || local->bytes != dense.nbytes() ||
        room_->reach(peer_) != DeviceRoom::Reach::kSameProcess) {
      throw Error(Code::kCorrupt, "an export that there is not");
    }
    devices.wait(stream, local->written);
    devices.copy(stream, dense.mutable_data_ptr(), local->memory, local->bytes);
    // The last one to let go of it must be no thread of the driver's.
    const std::weak_ptr<agent::Messenger> messenger = room_->worker().share_messenger();
    devices.then(stream, [held = std::move(held), messenger] {
      if (const auto here = messenger.lock()) here->run([held] {});
    });
  }
  devices.then(stream, [borrowed = borrowed_] {});
  room_->routes().note_come(peer_, dense.nbytes());
}

void MessageDevicesOf::copy_from_host(const at::Tensor& dense, const Buffer& bytes) {
  if (dense.device().is_cpu()) {
    std::memcpy(dense.mutable_data_ptr(), bytes.data(), bytes.size());
    return;
  }
  using End = device::HostCopies::End;
  const device::Stream stream = current_stream(dense.device());
  const End end = room_->host_copies().to_device(stream, dense.mutable_data_ptr(), bytes.data(),
                                                 bytes.size(), deadline_);
  if (end == End::kDone) return;
  if (end == End::kLate) {
    throw Error(Code::kTimeout, dense.device().str() + " did not take a tensor in time")
        .operation("copy a tensor from the host")
        .advice("find out what the device is busy with, or give the call more time");
  }
  // A small segment is a part of its frame, which may go before the stream has come so far.
  const Buffer kept = bytes.owner() ? bytes : Buffer::copy_of(bytes.span());
  room_->devices().copy(stream, dense.mutable_data_ptr(), kept.data(), kept.size());
  room_->devices().then(stream, [kept] {});
}

}  // namespace farspan
