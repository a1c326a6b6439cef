// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Transfer: one message of a tensor, from the checks of its arguments to its end.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>

#include <farspan/c10d/group/device_place.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {

// Checked, and not begun. begin() may be called once.
//
// Threading: a value; used by one thread.
class Transfer {
 public:
  // Tags below zero are the library's own.
  Transfer(P2POp::Kind kind, const at::Tensor& tensor, int peer, const MessageOptions& options);

  Work begin();
  // Begins, and waits; returns the rank, in the default group, at the other end.
  int finish();

 private:
  class State;
  struct Ended {
    int rank;                          // in the default group, at the other end
    std::shared_ptr<DeviceWork> work;  // of a device, which goes on with it; else null
  };
  Future<int> call_backend();
  void begin_on_device();
  Ended end(const Future<int>& done);
  void note_end(const Future<int>& ended);
  std::shared_ptr<DeviceWork> land();

  P2POp::Kind kind_;
  Group group_;
  Signature signature_;
  Message message_;
  TensorBlock data_;
  std::shared_ptr<const DevicePlace> place_;  // null: memory of the processor travels
  bool is_own_ = false;                       // data_ is a copy that nobody else knows
  TimePoint called_ = Clock::now();
  uint64_t record_ = 0;
};

}  // namespace farspan::dist
