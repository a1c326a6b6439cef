#include <farspan/rpc/worker.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/rpc/incoming_call.h>
#include <farspan/rpc/parting.h>

namespace farspan {
namespace {

// The workers of this process, for current_worker().
struct LiveWorkers {
  Mutex mutex;
  std::vector<Worker*> workers FARSPAN_GUARDED_BY(mutex);
};

LiveWorkers& live_workers() {
  static LiveWorkers* live = new LiveWorkers;  // never destroyed: threads may outlive main()
  return *live;
}

thread_local Worker* thread_worker = nullptr;

}  // namespace

const WorkerInfo& Worker::worker_info(const WorkerTarget& target) const {
  for (const WorkerInfo& info : workers()) {
    if (target.rank_ >= 0 ? info.rank == target.rank_ : info.name == target.name_) return info;
  }
  std::string known;
  for (const WorkerInfo& info : workers()) {
    if (known.size() > 200) {
      known += ", ...";
      break;
    }
    known +=
        (known.empty() ? "'" : ", '") + info.name + "' (rank " + std::to_string(info.rank) + ")";
  }
  const std::string wanted = target.name_.empty() ? "of rank " + std::to_string(target.rank_)
                                                  : "called '" + target.name_ + "'";
  throw Error(Code::kInvalidArgument, "there is no worker " + wanted)
      .advice("this job has " + known);
}

std::shared_ptr<Worker> Worker::make(std::shared_ptr<agent::Messenger> messenger,
                                     Settings settings) {
  return std::shared_ptr<Worker>(new Worker(std::move(messenger), settings));
}

Worker::Worker(std::shared_ptr<agent::Messenger> messenger, Settings settings)
    : messenger_(std::move(messenger)),
      settings_(settings),
      parting_(std::make_shared<Parting>(messenger_)) {
  parting_->listen();
  serve_calls(*this);
  MutexLock lock(live_workers().mutex);
  live_workers().workers.push_back(this);
}

Worker::~Worker() { end(); }

Deadline Worker::deadline_for(const CallOptions& options) const noexcept {
  const Millis timeout = options.timeout.value_or(settings_.rpc_timeout);
  const Deadline inherited = agent::current_call().deadline;
  if (timeout <= kNoTimeout) return inherited;
  return earlier(Deadline(messenger_->now() + timeout), inherited);
}

void Worker::set_interceptor(std::shared_ptr<Interceptor> interceptor) noexcept {
  interceptor_ = std::move(interceptor);
}

agent::MessengerCounters Worker::counters() const {
  agent::MessengerCounters counters = messenger_->counters();
  counters.calls_failed = calls_failed_.load(std::memory_order_relaxed);
  if (device_carrier_) counters.bytes_of_devices = device_carrier_->bytes_come();
  return counters;
}

std::vector<Route> Worker::routes() const {
  std::vector<Route> routes = messenger_->routes();
  if (device_carrier_) {
    for (Route& route : routes) device_carrier_->describe(route);
  }
  return routes;
}

void Worker::set_device_carrier(std::shared_ptr<DeviceCarrier> carrier) noexcept {
  device_carrier_ = std::move(carrier);
}

void Worker::put_room(RoomId id, std::shared_ptr<WorkerRoom> room) {
  rooms_[static_cast<size_t>(id)] = std::move(room);
}

Worker& current_worker() {
  if (thread_worker) return *thread_worker;
  LiveWorkers& live = live_workers();
  MutexLock lock(live.mutex);
  if (live.workers.size() == 1) return *live.workers.front();
  if (live.workers.empty()) {
    throw Error(Code::kInvalidArgument, "this process is no worker of a job (yet, or any more)")
        .advice("call init_rpc(name) first");
  }
  throw Error(Code::kInvalidArgument, "this process holds " + std::to_string(live.workers.size()) +
                                          " workers, and this thread has chosen none")
      .advice("call the methods of a Worker, or put a CurrentWorker around the block");
}

// Rooms drain from the top down, while calls still work; then all meet again, since draining calls
// others; then the connections end.
void Worker::shutdown(bool graceful) {
  if (ended_) throw Error(Code::kShutdown, "worker '" + name() + "' has been shut down already");
  if (net::inside_reactor()) {  // which the end would wait for
    throw Error(Code::kInvalidArgument, "a worker cannot be shut down by what it runs")
        .operation("shutdown")
        .advice(
            "call it in a thread of your own, not in a function that is called from other "
            "workers or in a continuation");
  }
  std::exception_ptr failure;
  if (graceful) {
    try {
      const Deadline deadline = settings_.shutdown_timeout <= kNoTimeout
                                    ? Deadline::never()
                                    : Deadline(messenger_->now() + settings_.shutdown_timeout);
      parting_->meet(deadline);
      for (auto room = rooms_.rbegin(); room != rooms_.rend(); ++room) {
        if (*room) (*room)->drain(deadline);
      }
      parting_->meet(deadline);
    } catch (const Error&) {
      failure = std::current_exception();
    }
  }
  end();
  if (failure) std::rethrow_exception(failure);
}

void Worker::end() {
  if (ended_.exchange(true)) return;
  {
    MutexLock lock(live_workers().mutex);
    std::erase(live_workers().workers, this);
  }
  parting_->stop();
  for (const auto& room : rooms_) {
    if (room) room->stop();
  }
  if (stop_) stop_();
  if (device_carrier_) device_carrier_->end();
  for (auto room = rooms_.rbegin(); room != rooms_.rend(); ++room) {
    if (*room) (*room)->end();
  }
}

Worker* set_current_worker(Worker* worker) noexcept { return std::exchange(thread_worker, worker); }

}  // namespace farspan
