// Messages between the simulated devices of ranks in threads, without LibTorch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "c10d/backends/nccl_ranks.h"
#include "support/errors.h"

namespace farspan::dist::nccl {

// A message that has been called, and its memory.
struct Called {
  std::shared_ptr<DeviceMessage> on_device;
  Future<int> given;

  // Has the stream wait for its end, once the device has been given it; returns the other rank.
  int follow(device::Stream stream) const {
    given.wait_until(Deadline::never());
    const int peer = given.value();
    on_device->hold_up(stream);
    return peer;
  }
  // Of one that has failed, before or after a device was given it.
  Error error() const {
    given.wait_until(Deadline::never());
    if (given.has_error()) return given.error();
    on_device->ended.wait_until(Deadline::never());
    return farspan::testing::error_of([&] { on_device->ended.value(); });
  }
};

struct MessageOptions {
  int tag = 0;
  std::optional<Millis> timeout = {};
  bool is_own = false;
  std::optional<device::Stream> stream = {};
};

class NcclMessages : public NcclRanks {
 protected:
  using NcclRanks::NcclRanks;
  static Message message(const Rank& rank, int peer, const MessageOptions& options) {
    Message one;
    one.peer = peer;
    one.tag = options.tag;
    one.type = DType::INT64;
    const Millis timeout = options.timeout.value_or(rank.timeout);
    one.deadline = Deadline::in(timeout);
    one.on_device = std::make_shared<DeviceMessage>();
    one.on_device->stream = options.stream.value_or(rank.stream);
    one.on_device->is_own = options.is_own;
    return one;
  }
  static Called isend(const Rank& rank, Block data, int peer, const MessageOptions& options = {}) {
    const Message one = message(rank, peer, options);
    return {one.on_device, rank.backend->send(one, data)};
  }
  static Called irecv(const Rank& rank, Block data, int peer, const MessageOptions& options = {}) {
    const Message one = message(rank, peer, options);
    return {one.on_device, rank.backend->recv(one, data)};
  }
  static void send(const Rank& rank, const Array& data, int peer,
                   const MessageOptions& options = {}) {
    isend(rank, data.block(), peer, options).follow(rank.stream);
  }
  static int recv(const Rank& rank, const Array& data, int peer,
                  const MessageOptions& options = {}) {
    return irecv(rank, data.block(), peer, options).follow(rank.stream);
  }
  // Of the processor's memory.
  static Message host_message(const Rank& rank, int peer) {
    Message one = message(rank, peer, {});
    one.on_device = nullptr;
    return one;
  }
  // What rank 0 has told rank 1 before is there when this returns there.
  static void tell_rank_1(const Rank& rank) {
    std::byte word{};
    Message one = host_message(rank, 1 - rank.number);
    one.tag = 1000;
    one.type = DType::UINT8;
    const Future<int> told = rank.number == 0 ? rank.backend->send(one, {&word, 1})
                                              : rank.backend->recv(one, {&word, 1});
    told.wait();
  }
  static std::string name(const Rank& rank, int other) { return rank.backend->name_of(other); }
};

}  // namespace farspan::dist::nccl
