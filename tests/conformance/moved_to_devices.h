// MovedToDevices: gives a backend that works on devices the tensors of the processor, each of them
// copied to the rank's device and back, so that the suite which is written for those runs on it.
#pragma once

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/group/backend.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farspan::testing {

// A device as one rank uses it in one group: a stream, on which nobody waits for another group, and
// memory.
//
// Threading: every method from any thread.
class CopyDevice : public std::enable_shared_from_this<CopyDevice> {
 public:
  CopyDevice(device::Devices& devices, int device)
      : devices_(devices), stream_(devices.new_stream(device)) {}
  ~CopyDevice() {
    devices_.synchronize(stream_, Deadline::never());
    devices_.end_stream(stream_);
    for (const Piece& piece : free_) devices_.release(piece.memory);
  }
  CopyDevice(const CopyDevice&) = delete;
  CopyDevice& operator=(const CopyDevice&) = delete;

  device::Stream stream() const { return stream_; }
  std::shared_ptr<CopyDevice> for_another_group() const {
    return std::make_shared<CopyDevice>(devices_, stream_.device);
  }
  // To be used again, not released: a real device would wait for what others have given it.
  std::shared_ptr<std::byte> take(size_t bytes) {
    const Piece piece = free_or_new(std::max<size_t>(bytes, 1));
    return {piece.memory, [self = shared_from_this(), piece](std::byte*) {
              const std::lock_guard lock(self->mutex_);
              self->free_.push_back(piece);
            }};
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes == 0) return;
    devices_.copy(stream_, to, from, bytes);
    devices_.synchronize(stream_, Deadline::never());
  }

 private:
  struct Piece {
    std::byte* memory;
    size_t bytes;
  };
  Piece free_or_new(size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(
          free_, [&](const Piece& one) { return one.bytes >= bytes && one.bytes / 2 <= bytes; });
      if (found != free_.end()) {
        const Piece piece = *found;
        free_.erase(found);
        return piece;
      }
    }
    return {static_cast<std::byte*>(devices_.allocate(stream_.device, bytes)), bytes};
  }

  device::Devices& devices_;
  const device::Stream stream_;
  std::mutex mutex_;
  std::vector<Piece> free_;
};

// Blocks of one type that lie on the device one after the other, as they do where the group brings
// tensors of a device.
class OnDevice {
 public:
  OnDevice(std::shared_ptr<CopyDevice> device, dist::DType type, std::span<const dist::Block> here)
      : device_(std::move(device)), element_(dist::size_of(type)), here_(here.begin(), here.end()) {
    size_t count = 0;
    for (const dist::Block& block : here_) count += block.count;
    memory_ = device_->take(count * element_);
    std::byte* place = memory_.get();
    for (const dist::Block& block : here_) {
      there_.push_back({place, block.count});
      place += block.count * element_;
      device_->copy(there_.back().data, block.data, block.count * element_);
    }
  }

  dist::Block block() const { return there_.front(); }
  const std::vector<dist::Block>& blocks() const { return there_; }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }
  void bring_back() const {
    for (size_t i = 0; i < here_.size(); ++i) {
      device_->copy(here_[i].data, there_[i].data, here_[i].count * element_);
    }
  }

 private:
  const std::shared_ptr<CopyDevice> device_;
  const size_t element_;
  const std::vector<dist::Block> here_;
  std::vector<dist::Block> there_;
  std::shared_ptr<std::byte> memory_;
};

// What the backend cannot do on a device goes to it as it is.
class MovedToDevices final : public dist::Backend {
 public:
  using Block = dist::Block;
  using Blocks = std::span<const Block>;

  MovedToDevices(std::shared_ptr<dist::Backend> backend, std::shared_ptr<CopyDevice> device)
      : backend_(std::move(backend)), device_(std::move(device)) {}

  std::string_view name() const noexcept override { return backend_->name(); }
  std::string name_of(int rank) const override { return backend_->name_of(rank); }

  void broadcast(const dist::Call& call, Block data) override {
    in_place(call, data, [](auto& to, auto& on, Block there) { to.broadcast(on, there); });
  }
  void all_reduce(const dist::Call& call, Block data) override {
    if (!is_reduced_there(call)) return backend_->all_reduce(call, data);
    in_place(call, data, [](auto& to, auto& on, Block there) { to.all_reduce(on, there); });
  }
  void reduce(const dist::Call& call, Block data) override {
    if (!is_reduced_there(call)) return backend_->reduce(call, data);
    in_place(call, data, [](auto& to, auto& on, Block there) { to.reduce(on, there); });
  }
  void all_gather(const dist::Call& call, Block in, Blocks out) override {
    from_to(call, {&in, 1}, out, [](auto& by, auto& on, auto& from, auto& to) {
      by.all_gather(on, from.block(), to.blocks());
    });
  }
  void gather(const dist::Call& call, Block in, Blocks out) override {
    from_to(call, {&in, 1}, out, [](auto& by, auto& on, auto& from, auto& to) {
      by.gather(on, from.block(), to.blocks());
    });
  }
  void scatter(const dist::Call& call, Blocks in, Block out) override {
    from_to(call, in, {&out, 1}, [](auto& by, auto& on, auto& from, auto& to) {
      by.scatter(on, from.blocks(), to.block());
    });
  }
  void reduce_scatter(const dist::Call& call, Blocks in, Block out) override {
    if (!is_reduced_there(call)) return backend_->reduce_scatter(call, in, out);
    from_to(call, in, {&out, 1}, [](auto& by, auto& on, auto& from, auto& to) {
      by.reduce_scatter(on, from.blocks(), to.block());
    });
  }
  void all_to_all(const dist::Call& call, Blocks in, Blocks out) override {
    from_to(call, in, out, [](auto& by, auto& on, auto& from, auto& to) {
      by.all_to_all(on, from.blocks(), to.blocks());
    });
  }
  void barrier(const dist::Call& call) override { backend_->barrier(call); }

  Future<int> send(const dist::Message& message, Block data) override {
    if (is_of_the_library(message)) return backend_->send(message, data);
    const auto there = std::make_shared<const OnDevice>(device_, message.type, Blocks(&data, 1));
    const dist::Message moved = message_of(message, there);
    return when_done(moved, backend_->send(moved, there->block()), [] {});
  }
  Future<int> recv(const dist::Message& message, Block data) override {
    if (is_of_the_library(message)) return backend_->recv(message, data);
    const auto there = std::make_shared<const OnDevice>(device_, message.type, Blocks(&data, 1));
    const dist::Message moved = message_of(message, there);
    return when_done(moved, backend_->recv(moved, there->block()),
                     [there] { there->bring_back(); });
  }

  void abort(const Error& why, uint64_t since) noexcept override { backend_->abort(why, since); }
  void finish(Deadline deadline) noexcept override { backend_->finish(deadline); }
  void leave() noexcept override { backend_->leave(); }
  std::shared_ptr<dist::Backend> subgroup(dist::GroupSpec spec) override {
    return std::make_shared<MovedToDevices>(backend_->subgroup(std::move(spec)),
                                            device_->for_another_group());
  }

 private:
  static bool is_of_the_library(const dist::Message& message) { return message.tag < 0; }
  // A factor is the group's to multiply by.
  bool is_reduced_there(const dist::Call& call) const {
    return call.reduce() != dist::ReduceOp::kPremulSum &&
           backend_->why_not_on_device(call.reduce(), call.type).empty();
  }
  OnDevice moved(const dist::Call& call, Blocks blocks) const {
    return {device_, call.type, blocks};
  }
  // Returns when the device has done it.
  template <class Fn>
  void perform(const dist::Call& call, const Fn& fn) {
    dist::DeviceCall on_device;
    on_device.stream = device_->stream();
    dist::Call moved = call;
    moved.on_device = &on_device;
    fn(moved);
    on_device.ended.wait();
  }
  template <class Fn>
  void from_to(const dist::Call& call, Blocks in, Blocks out, const Fn& fn) {
    const OnDevice from = moved(call, in), to = moved(call, out);
    perform(call, [&](const auto& on) { fn(*backend_, on, from, to); });
    to.bring_back();
  }
  template <class Fn>
  void in_place(const dist::Call& call, Block data, const Fn& fn) {
    const OnDevice there = moved(call, {&data, 1});
    perform(call, [&](const auto& on) { fn(*backend_, on, there.block()); });
    there.bring_back();
  }

  dist::Message message_of(const dist::Message& message,
                           const std::shared_ptr<const OnDevice>& there) const {
    dist::Message moved = message;
    moved.on_device = std::make_shared<dist::DeviceMessage>();
    moved.on_device->stream = device_->stream();
    moved.on_device->memory = std::shared_ptr<const void>(there, there->memory().get());
    moved.on_device->is_own = true;  // the copy
    return moved;
  }
  // Ready when the device has done it, and then `last()` has been called.
  template <class Last>
  static Future<int> when_done(const dist::Message& moved, const Future<int>& given,
                               const Last& last) {
    const Promise<int> done;
    given.on_ready([on_device = moved.on_device, given, done, last] {
      if (given.has_error()) return static_cast<void>(done.set_error(given.error()));
      on_device->ended.on_ready([ended = on_device->ended, given, done, last] {
        if (ended.has_error()) return static_cast<void>(done.set_error(ended.error()));
        last();
        done.set_value(given.value());
      });
    });
    return done.future();
  }

  const std::shared_ptr<dist::Backend> backend_;
  const std::shared_ptr<CopyDevice> device_;
};

}  // namespace farspan::testing
