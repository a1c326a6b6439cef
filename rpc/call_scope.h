// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// CallScope: what codecs of the rooms above see of the message that they write or read.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/values/value_io.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/device_carrier.h>

namespace farspan {

class Worker;

// Threading: one thread at a time, as the Writer or Reader that holds it.
class CallScope final : public ValueScope {
 public:
  CallScope(Worker& worker, int peer, MessageWay way) noexcept
      : worker_(worker), peer_(peer), way_(way) {}
  // The message was not sent: something else in it could not be written, say.
  ~CallScope() override {
    for (const OnOutcome& outcome : take_outcomes()) outcome(false);
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  Worker& worker() noexcept { return worker_; }
  int peer() const noexcept { return peer_; }  // the rank at the other end of the message

  // While writing: `fn` hears once what became of the message. `arrived`: the peer has read it;
  // false: it may have, or may yet, or never will. It must not throw.
  using OnOutcome = std::function<void(bool arrived)>;
  void on_outcome(OnOutcome fn) { outcomes_.push_back(std::move(fn)); }
  // For whoever sends the message, and will tell them.
  std::vector<OnOutcome> take_outcomes() noexcept { return std::exchange(outcomes_, {}); }

  // While reading: the function runs only when `ready` is; what it fails with fails the call.
  void wait_first(Future<void> ready) { first_.push_back(std::move(ready)); }
  void before_run() override;
  Buffer allocate(size_t bytes) override;
  DeviceTensors* device_tensors() override;

  // Of tensors on devices: what the message lends that was written, and what is lent to the reader
  // of this one.
  std::shared_ptr<LentMemory> lent() { return devices_ ? devices_->lent() : nullptr; }
  void borrow(std::shared_ptr<void> borrowed);
  DeviceTerms& device_terms() noexcept { return device_terms_; }

 private:
  Worker& worker_;
  const int peer_;
  const MessageWay way_;
  DeviceTerms device_terms_;
  std::unique_ptr<MessageDevices> devices_;
  std::vector<OnOutcome> outcomes_;
  std::vector<Future<void>> first_;
};

}  // namespace farspan
