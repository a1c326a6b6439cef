// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceRoutes: how tensors get from a device of this worker to one of another, found out by
// trying.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/exports.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan {

class DeviceRoom;
struct Probe;

// Threading: every method from any thread.
// Lifetime:  the room outlives it.
class DeviceRoutes {
 public:
  DeviceRoutes(DeviceRoom& room, DeviceToDevice device_to_device)
      : room_(room), device_to_device_(device_to_device) {}

  // Whether tensors go straight from `here` to that worker's device `there`. Who asks first has
  // that device try it, and waits for that; ten seconds at most, where there is another way.
  //   throws  Error kUnavailable: they do not, and DeviceToDevice::kRequired; kTimeout,
  //           kDisconnected, kShutdown: that worker has not answered, and is asked again next time
  bool is_direct(int peer, int here, int there, Deadline deadline);
  // Has it tried, for later; blocks nobody but for what this worker's device takes to get ready.
  //   kAny    for maps that name it
  //   kInUse  only where that process uses its device already (one that it tries is one that it
  //           uses); only that it goes well is remembered
  enum class Which { kAny, kInUse };
  void try_early(int peer, int here, int there, Which which);
  // Of a tensor that goes straight, but by way of memory that other processes can open.
  void note_staged(int peer, int here, int there, uint64_t bytes);
  // The same of one that found no room there, and goes through the processor's memory; that is in
  // the log once.
  //   throws  Error kUnavailable: DeviceToDevice::kRequired
  void note_not_staged(int peer, int here, int there, uint64_t bytes);
  // Of what a worker has lent for this one's device `here`, and cannot be opened, though that had
  // gone well when it was tried: what that worker sends next goes another way.
  //   over     ends it, too
  //   returns  the bytes, by way of the processor's memory; waits for that worker's answer
  //   throws   Error kUnavailable: `why`, with DeviceToDevice::kRequired, at either end; kTimeout,
  //            kShutdown, kOverloaded, kCancelled; kDisconnected: also where it was lent on a line
  //            that has ended
  Buffer fetch_unopened(int peer, const device::Export& lent, int here, const Error& why,
                        Deadline deadline, const std::optional<Future<void>>& over);
  // Serves another worker, on a thread of its own: tries what it asks for; hears, at once, what it
  // could not open, and gives it the bytes.
  void serve_probe(agent::Request request);
  void serve_unopened(agent::Request request);

  void note_come(int peer, uint64_t bytes);
  std::vector<DeviceRoute> known(int peer) const;
  uint64_t bytes_come(int peer) const;
  uint64_t bytes_come() const noexcept;

 private:
  class Trial;
  struct Verdict {
    std::string why_not_direct;  // empty: it is
    bool is_passing = false;     // to be tried again after a while
  };
  struct Found {
    std::string why_not_direct;
    TimePoint known_until{};                 // the first of all: not known
    int times_unopened = 0;                  // after it had gone well
    uint64_t staged = 0, not_staged = 0;     // bytes, ever
    std::shared_ptr<Trial> trial = nullptr;  // under way
  };
  using Key = std::tuple<int, int, int>;  // peer, here, there

  bool is_required() const noexcept { return device_to_device_ == DeviceToDevice::kRequired; }
  //   throws  Error kUnavailable: DeviceToDevice::kRequired
  void refuse_if_required(int peer, int here, int there, const std::string& why) const;
  // Nothing where it is known, or somebody else's trial is under way.
  std::shared_ptr<Trial> new_trial_locked(const Key& key, Deadline deadline,
                                          Which which = Which::kAny) FARSPAN_REQUIRES(mutex_);
  void begin(const std::shared_ptr<Trial>& trial, bool will_wait);
  void ask(const std::shared_ptr<Trial>& trial, bool will_wait);
  void end(Trial& trial, const Verdict& verdict);
  // Absent: nobody's error.
  void end_without_verdict(Trial& trial, std::optional<Error> why);
  void copy_and_look(int peer, const Probe& probe, Deadline deadline);
  void hear_unopened(int peer, int here, int there, const std::string& why);
  void answer_probe(agent::Request& request);
  void give_lent(agent::Request request, const device::Export& lent);
  void tell(int peer, int here, int there, const std::string& why, const char* advice) const;

  DeviceRoom& room_;
  const DeviceToDevice device_to_device_;
  mutable Mutex mutex_;
  std::map<Key, Found> found_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, uint64_t> come_ FARSPAN_GUARDED_BY(mutex_);  // bytes, by peer
};

}  // namespace farspan
