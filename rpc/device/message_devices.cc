#include <farspan/rpc/device/message_devices.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <farspan/rpc/device/by_host.h>
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
    if (!is_left_) room_->exports().taken(id_);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  uint64_t id() const noexcept { return id_; }
  void add_local(uint64_t id) { local_.push_back(id); }
  // To who is asked for it, and keeps it.
  void leave_to(int peer) noexcept {
    is_left_ = true;
    room_->recalls().keep(peer, id_);
  }

 private:
  const std::shared_ptr<DeviceRoom> room_;
  const uint64_t id_;
  std::vector<uint64_t> local_;
  bool is_left_ = false;
};

// What a message lends. The line keeps it until the receiver has let go.
class MessageDevicesOf::Lent final : public LentMemory {
 public:
  Lent(const std::shared_ptr<DeviceRoom>& room, int peer)
      : held(std::make_shared<Held>(room)),
        peer_(peer),
        is_by_name_(room->reach(peer) == DeviceRoom::Reach::kByName) {}
  const std::shared_ptr<Held> held;

 private:
  void stay_lent() noexcept override {
    if (is_by_name_) held->leave_to(peer_);
  }

  const int peer_;
  const bool is_by_name_;
};

MessageDevicesOf::MessageDevicesOf(std::shared_ptr<DeviceRoom> room, int peer, MessageWay way,
                                   const DeviceTerms& terms)
    : room_(std::move(room)), peer_(peer), way_(way), terms_(terms) {}

MessageDevicesOf::~MessageDevicesOf() = default;

MessageDevicesOf::Lent& MessageDevicesOf::lent_exports() {
  if (!lent_) lent_ = std::make_shared<Lent>(room_, peer_);
  return *lent_;
}

std::shared_ptr<LentMemory> MessageDevicesOf::lent() { return std::move(lent_); }

int MessageDevicesOf::place_there(at::Device here) {
  if (terms_.place) return room_->checked_place(peer_, *terms_.place);
  try {
    return room_->place_there(peer_, way_, here);
  } catch (const Error&) {
    if (!terms_.host_if_unmapped) throw;
    return kCpu;
  }
}

device::Stream MessageDevicesOf::sending_stream(at::Device device) {
  const device::Stream stream = current_stream(device);
  if (!room_->devices().is_captured(stream)) return stream;
  throw Error(Code::kInvalidArgument, "a graph is being captured on the current stream of " +
                                          device::Place{stream.device}.text())
      .advice("a call cannot be part of it: make it before or after the capture");
}

bool MessageDevicesOf::lend(const at::Tensor& dense, schema::DeviceBytes::Builder out) {
  DeviceRoutes& routes = room_->routes();
  const int here = dense.get_device(), there = place_there(dense.device());
  if (there == kCpu || !routes.is_direct(peer_, here, there, terms_.deadline)) return false;
  const device::Stream stream = sending_stream(dense.device());
  const DeviceRoom::Reach reach = room_->reach(peer_);
  const std::shared_ptr<Held>& held = lent_exports().held;
  room_->release_idle();
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
  return farspan::copy_to_host(*room_, sending_stream(dense.device()), dense.const_data_ptr(),
                               dense.nbytes(), terms_.deadline);
}

at::Device MessageDevicesOf::device_here(int place) {
  const at::Device device = room_->device_here(place);
  if (!device.is_cpu()) OwnStreams::use(device);
  return device;
}

void MessageDevicesOf::borrow(const at::Tensor& dense, schema::DeviceBytes::Reader from) {
  if (terms_.drops_bytes) return;
  if (dense.device().is_cpu()) throw Error(Code::kCorrupt, "device memory is lent to the CPU");
  std::shared_ptr<const void> use;
  if (from.hasMemory()) {
    const device::Export lent = read_export(from);
    use = room_->uses().begin(peer_, lent.id);
    borrow_by_name(dense, lent);
  } else {
    borrow_local(dense, from.getRegion());
  }
  const device::Stream stream = current_stream(dense.device());
  try {
    room_->devices().then(stream, [borrowed = borrowed_, use] {});
  } catch (...) {  // what is lent may be let go of when it has been copied
    room_->devices().synchronize(stream, terms_.deadline);
    throw;
  }
}

void MessageDevicesOf::borrow_by_name(const at::Tensor& dense, const device::Export& lent) {
  const device::Stream stream = current_stream(dense.device());
  std::optional<Error> unopened;
  try {
    room_->import(peer_, lent, dense.mutable_data_ptr(), stream);
    come_ += dense.nbytes();
    return room_->routes().note_come(peer_, dense.nbytes());
  } catch (const Error& error) {
    if (error.code() == Code::kCorrupt) throw;
    unopened = error;
  }
  if (terms_.must_not_block) {
    room_->routes().note_come(peer_, 0 - come_);  // it will be read again
    throw WouldBlock();
  }
  const Buffer bytes = room_->routes().fetch_unopened(peer_, lent, stream.device, *unopened,
                                                      terms_.deadline, terms_.given_up);
  farspan::copy_from_host(*room_, stream, dense.mutable_data_ptr(), bytes, terms_.deadline);
}

void MessageDevicesOf::borrow_local(const at::Tensor& dense, uint64_t id) {
  const device::Stream stream = current_stream(dense.device());
  device::Devices& devices = room_->devices();
  const auto local = LocalExports::all().find(id);
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
  room_->routes().note_come(peer_, dense.nbytes());
}

void MessageDevicesOf::copy_from_host(const at::Tensor& dense, const Buffer& bytes) {
  if (terms_.drops_bytes) return;
  if (dense.device().is_cpu()) {
    std::memcpy(dense.mutable_data_ptr(), bytes.data(), bytes.size());
    return;
  }
  farspan::copy_from_host(*room_, current_stream(dense.device()), dense.mutable_data_ptr(), bytes,
                          terms_.deadline);
}

}  // namespace farspan
