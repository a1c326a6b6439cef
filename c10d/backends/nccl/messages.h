// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Messages: those between the devices of a group's ranks, from device to device.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/nccl/direction.h>

namespace farspan::dist::nccl {

// Another backend of the same group finds out which send goes to which receive: what goes there is
// a number in place of the elements. What both ends are there for their devices are given, by a
// Direction. A thread looks whether they do it.
//
// Threading: every method from any thread. Futures complete without a lock.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  struct Options {
    std::shared_ptr<Library> nccl;
    std::shared_ptr<Backend> control;
    GroupSpec spec;
    // What a device had been given has failed, or could not be given.
    std::function<void(const Error& why)> on_failed;
  };
  explicit Messages(Options options) : options_(std::move(options)) {}
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // See Backend; on_device is not null.
  Future<int> send(const Message& message, Block data);
  Future<int> recv(const Message& message, Block data);

  // That of the first one.
  std::optional<int> device() const;

  // Waits until all that has begun on a device has ended, or `deadline` has passed.
  void finish(Deadline deadline);
  // What both ends are there for ends with `why`, now and in future; the other backend ends the
  // rest.
  //   returns  whether something had begun, which other ranks count on
  bool fail(const Error& why) noexcept;
  // After fail(), and when the other backend is of no use any more: joins threads.
  void stop() noexcept;

  // For the thread that looks. False: it has been stopped.
  bool wait_and_look();

 private:
  using End = Exchange::End;
  std::shared_ptr<Exchange> make(End end, const Message& message, Block data);
  void receiver_found(const std::shared_ptr<Exchange>& exchange);
  void sender_found(const std::shared_ptr<Exchange>& exchange);
  std::shared_ptr<Exchange> take_own(uint64_t number);
  std::shared_ptr<Direction> direction(int peer, End end);
  std::vector<std::shared_ptr<Direction>> directions() const;
  void wake();

  const Options options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<int> device_ FARSPAN_GUARDED_BY(mutex_);
  uint64_t sent_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::shared_ptr<Exchange>> own_ FARSPAN_GUARDED_BY(mutex_);  // to itself
  std::map<std::pair<int, End>, std::shared_ptr<Direction>> directions_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> failure_ FARSPAN_GUARDED_BY(mutex_);
  bool is_to_look_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);
};

// Why a rank cannot use another device in a group.
Error other_device_error(int device, int of_group);

}  // namespace farspan::dist::nccl
