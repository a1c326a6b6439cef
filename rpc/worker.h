// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Worker: one member of the job. It owns its connections and what the rooms above keep for it. The
// free functions of rpc.h work on the calling thread's current worker.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/call/interceptor.h>
#include <farspan/rpc/call_times.h>
#include <farspan/rpc/device_carrier.h>
#include <farspan/rpc/options.h>

namespace farspan {

class Worker;
class Parting;

// Whom to call: a name, a rank, or a WorkerInfo.
class WorkerTarget {
 public:
  WorkerTarget(std::string name) : name_(std::move(name)) {}  // NOLINT: a conversion
  WorkerTarget(const char* name) : name_(name) {}             // NOLINT: a conversion
  WorkerTarget(int rank) : rank_(rank) {}                     // NOLINT: a conversion
  WorkerTarget(const WorkerInfo& info) : rank_(info.rank) {}  // NOLINT: a conversion

 private:
  friend class Worker;
  std::string name_;
  int rank_ = -1;
};

// A room above rpc that lives in a worker: its RRef table, its autograd contexts.
class WorkerRoom {
 public:
  virtual ~WorkerRoom() = default;
  // A graceful shutdown goes through all rooms, the uppermost first, while calls still work.
  virtual void drain(Deadline) {}
  // The worker is about to end. Threads that wait for the room must give up, since they are joined
  // next; they may still be using what it holds.
  virtual void stop() {}
  // Connections are gone, threads have ended.
  virtual void end() {}
};
enum class RoomId : size_t { kRRef, kAutograd, kOptim };

// Threading: every method from any thread.
// Lifetime:  shutdown() ends it; calls after that throw kShutdown. Futures may outlive it.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  struct Settings {
    Millis rpc_timeout{60'000};
    Millis shutdown_timeout{60'000};
  };
  // Over a messenger that is ready. Programs use init_rpc().
  static std::shared_ptr<Worker> make(std::shared_ptr<agent::Messenger> messenger,
                                      Settings settings);
  ~Worker();

  const std::string& name() const noexcept { return info().name; }
  int rank() const noexcept { return info().rank; }
  int world_size() const noexcept { return static_cast<int>(workers().size()); }
  const WorkerInfo& info() const noexcept { return messenger_->self(); }
  const std::vector<WorkerInfo>& workers() const noexcept { return messenger_->workers(); }
  //   throws  Error kInvalidArgument: there is no such worker; it lists those there are
  const WorkerInfo& worker_info(const WorkerTarget& target) const;

  // Calls `fn(args...)` there; see rpc.h for what may be called and what may be passed.
  template <class Fn, class... Args>
  auto rpc_sync(const WorkerTarget& to, Fn fn, Args&&... args);
  template <class Fn, class... Args>
  auto rpc_sync(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args);
  template <class Fn, class... Args>
  auto rpc_async(const WorkerTarget& to, Fn fn, Args&&... args);
  template <class Fn, class... Args>
  auto rpc_async(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args);

  // Starts `fn(args...)` there and returns a reference to its result at once. Defined in
  // rref/remote.h.
  template <class Fn, class... Args>
  auto remote(const WorkerTarget& to, Fn fn, Args&&... args);
  template <class Fn, class... Args>
  auto remote(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args);

  // Graceful: waits until every worker is here and nothing is under way, lets the rooms let go of
  // what they hold, and ends. Otherwise: ends at once, and calls under way fail.
  //   throws  Error kTimeout (worker 0 names who is missing), kDisconnected (worker 0, which leads
  //           it, died; the death of another holds up nobody), kShutdown (it was ended already),
  //           kInvalidArgument (called by what the worker runs, instead of a thread of your own)
  void shutdown(bool graceful = true);

  Millis rpc_timeout() const noexcept { return settings_.rpc_timeout; }
  Millis shutdown_timeout() const noexcept { return settings_.shutdown_timeout; }
  // What it has done, and what it holds: rpc/agent/messenger.h says which.
  agent::MessengerCounters counters() const;
  // The ways to other workers that are open.
  std::vector<Route> routes() const;
  // Of all calls that this worker made and that have ended.
  CallTimes call_times() const { return call_times_.read(); }

  // For the rooms above.
  void add_call_time(Clock::duration took) noexcept { call_times_.add(took); }
  void add_failed_call() noexcept { calls_failed_.fetch_add(1, std::memory_order_relaxed); }
  // When calls of one function to one worker are answered.
  net::Forecast& forecast(int peer, uint64_t function) noexcept {
    return forecasts_.of(peer, function);
  }
  agent::Messenger& messenger() noexcept { return *messenger_; }
  const std::shared_ptr<agent::Messenger>& share_messenger() const noexcept { return messenger_; }
  void set_interceptor(std::shared_ptr<Interceptor> interceptor) noexcept;
  Interceptor* interceptor() const noexcept { return interceptor_.get(); }
  // Null: tensors of accelerators do not travel.
  void set_device_carrier(std::shared_ptr<DeviceCarrier> carrier) noexcept;
  DeviceCarrier* device_carrier() const noexcept { return device_carrier_.get(); }
  void put_room(RoomId id, std::shared_ptr<WorkerRoom> room);
  WorkerRoom* room(RoomId id) const noexcept { return rooms_[static_cast<size_t>(id)].get(); }
  // The deadline of a call that is made now: its own timeout, or the default, and never later than
  // that of the call that the calling thread is serving.
  Deadline deadline_for(const CallOptions& options) const noexcept;
  // How this worker ends, set by whoever made it: `stop` ends the messenger.
  void set_stop(std::function<void()> stop) { stop_ = std::move(stop); }

 private:
  Worker(std::shared_ptr<agent::Messenger> messenger, Settings settings);
  void end();

  const std::shared_ptr<agent::Messenger> messenger_;
  const Settings settings_;
  CallTimesRecorder call_times_;
  std::atomic<uint64_t> calls_failed_{0};
  net::Forecasts forecasts_;
  std::shared_ptr<Interceptor> interceptor_;          // constant before the first call
  std::shared_ptr<DeviceCarrier> device_carrier_;     // likewise
  std::array<std::shared_ptr<WorkerRoom>, 3> rooms_;  // likewise
  std::function<void()> stop_;
  const std::shared_ptr<Parting> parting_;
  std::atomic<bool> ended_{false};
};

// The worker behind the free functions: the one that this thread is serving a call for, or was
// given, or else the process's only one.
//   throws  Error kInvalidArgument: there is none, or several
Worker& current_worker();
// For the calling thread; null takes it back. The worker must outlive its use.
Worker* set_current_worker(Worker* worker) noexcept;

// Makes a worker current for a block.
class CurrentWorker {
 public:
  explicit CurrentWorker(Worker& worker) noexcept : outer_(set_current_worker(&worker)) {}
  ~CurrentWorker() { set_current_worker(outer_); }
  CurrentWorker(const CurrentWorker&) = delete;
  CurrentWorker& operator=(const CurrentWorker&) = delete;

 private:
  Worker* outer_;
};

}  // namespace farspan
