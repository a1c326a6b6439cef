// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The tensors of one message, between the devices of two workers.
#pragma once

#include <memory>

#include <farspan/rpc/device/device_room.h>

namespace farspan {

class MessageDevicesOf final : public MessageDevices {
 public:
  MessageDevicesOf(std::shared_ptr<DeviceRoom> room, int peer, MessageWay way,
                   const DeviceTerms& terms);
  ~MessageDevicesOf() override;

  int place_there(at::Device here) override;
  bool lend(const at::Tensor& dense, schema::DeviceBytes::Builder out) override;
  Buffer copy_to_host(const at::Tensor& dense) override;
  at::Device device_here(int place) override;
  void borrow(const at::Tensor& dense, schema::DeviceBytes::Reader from) override;
  void copy_from_host(const at::Tensor& dense, const Buffer& bytes) override;
  std::shared_ptr<LentMemory> lent() override;
  void keep_until_copied(std::shared_ptr<void> borrowed) override {
    borrowed_ = std::move(borrowed);
  }

 private:
  class Held;
  class Lent;
  Lent& lent_exports();
  // That a tensor is sent from.
  //   throws  Error kInvalidArgument: it is being captured
  device::Stream sending_stream(at::Device device);
  void borrow_by_name(const at::Tensor& dense, const device::Export& lent);
  void borrow_local(const at::Tensor& dense, uint64_t id);

  const std::shared_ptr<DeviceRoom> room_;
  const int peer_;
  const MessageWay way_;
  const DeviceTerms& terms_;
  uint64_t come_ = 0;  // bytes from device to device, as far as it was read
  std::shared_ptr<Lent> lent_;
  std::shared_ptr<void> borrowed_;
};

}  // namespace farspan
