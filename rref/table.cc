#include <farspan/rref/table.h>

#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/call.capnp.h>
#include <farspan/rpc/call/result.h>

namespace farspan {
namespace {

uint64_t short_instance(const wire::InstanceId& id) noexcept { return id.high ^ id.low; }

}  // namespace

rref::Handle::~Handle() { table_->drop(id_); }

std::shared_ptr<RRefTable> RRefTable::install(Worker& worker) {
  std::shared_ptr<RRefTable> table(new RRefTable(worker));
  worker.put_room(RoomId::kRRef, table);
  table->listen();
  return table;
}

RRefTable& RRefTable::of(Worker& worker) {
  auto* table = static_cast<RRefTable*>(worker.room(RoomId::kRRef));
  if (table) return *table;
  throw Error(Code::kInvalidArgument, "worker '" + worker.name() + "' keeps no remote references")
      .advice("make workers with init_rpc");
}

std::shared_ptr<Worker> RRefTable::worker() const {
  if (auto worker = worker_.lock()) return worker;
  throw has_ended();
}

Error RRefTable::has_ended() const {
  return Error(Code::kShutdown, "worker '" + messenger_->self().name + "' has been shut down");
}

RRefTable::RRefTable(Worker& worker)
    : worker_(worker.weak_from_this()),
      host_(worker),
      messenger_(worker.share_messenger()),
      self_{worker.rank(), short_instance(messenger_->instance_of(worker.rank()))},
      protocol_([&] {
        rref::ProtocolOptions options;
        options.self = self_;
        return options;
      }()) {}

void RRefTable::listen() {
  for (const WorkerInfo& info : messenger_->workers()) {
    runs_.push_back({info.rank, short_instance(messenger_->instance_of(info.rank))});
    if (info.rank == self_.rank) continue;
    step([&](rref::RRefProtocol& p) {
      p.on_peer_joined(runs_.back(), info.name, messenger_->now());
    });
  }
  using Run = agent::Messenger::Run;
  using agent::Request;
  const auto weak = weak_from_this();
  const auto with_table = [weak](void (RRefTable::*serve)(IncomingCall)) {
    return [weak, serve](Request request) {
      const auto table = weak.lock();
      if (table) (table.get()->*serve)(IncomingCall(table->host_, std::move(request)));
    };
  };
  messenger_->handle(wire::Kind::kRRefControl, Run::kInline, [weak](Request request) {
    if (const auto table = weak.lock()) table->on_control(request);
  });
  messenger_->handle(wire::Kind::kRemoteCall, Run::kAsTask, with_table(&RRefTable::serve_creation));
  messenger_->handle(wire::Kind::kRRefCall, Run::kAsTask, with_table(&RRefTable::serve_call));
  messenger_->handle(wire::Kind::kRRefFetch, Run::kAsTask, with_table(&RRefTable::serve_fetch));
  messenger_->on_worker_lost([weak](int rank, const Error& why) {
    const auto table = weak.lock();
    if (!table || rank == table->self_.rank) return;
    using Loss = rref::RRefProtocol::Loss;
    const Loss loss = why.code() == Code::kShutdown ? Loss::kEnded : Loss::kUnreachable;
    table->step_quietly([&](rref::RRefProtocol& p) {
      p.on_peer_lost(table->run_of(rank), loss, table->messenger_->now());
    });
  });
  messenger_->on_late_reply([weak](int from, wire::InFrame&& reply) {
    if (const auto table = weak.lock()) table->on_late_reply(from, reply);
  });
}

WorkerRun RRefTable::run_of(int rank) const { return runs_.at(static_cast<size_t>(rank)); }

void RRefTable::perform(rref::Outbox out) {
  std::vector<std::shared_ptr<Result>> released;  // destroyed at the end, outside the lock
  std::vector<std::pair<Promise<void>, std::optional<Error>>> results;
  std::optional<Promise<rref::DrainReport>> drained;
  {
    MutexLock lock(mutex_);
    for (const RRefId& id : out.releases) {
      const auto value = values_.find(id);
      if (value == values_.end()) continue;
      released.push_back(std::move(value->second));
      values_.erase(value);
    }
    for (const rref::WaitResult& result : out.results) {
      const auto wait = waits_.find(result.id);
      if (wait == waits_.end()) continue;
      results.emplace_back(std::move(wait->second), result.error);
      waits_.erase(wait);
    }
    if (out.drained) drained = std::exchange(draining_, std::nullopt);
  }
  set_timer();
  for (const rref::ControlFrame& control : out.frames) {
    const std::vector<std::byte> meta = rref::encode(control);
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kRRefControl;
    frame.meta = meta;
    messenger_->post(control.to.rank, frame);
  }
  for (auto& [promise, error] : results) {
    error ? promise.set_error(*error) : promise.set_value();
  }
  if (drained) drained->set_value(std::move(*out.drained));
}

// Asks the protocol itself: an Outbox may be performed after a later one.
void RRefTable::set_timer() {
  agent::TimerId old = 0;
  {
    MutexLock lock(mutex_);
    const Deadline at = protocol_.wake_at();
    if (at == timer_at_) return;
    timer_at_ = at;
    old = std::exchange(timer_, 0);
    if (!at.is_never()) {
      timer_ = messenger_->call_at(at.at(), [weak = weak_from_this(), at] {
        const auto table = weak.lock();
        if (!table) return;
        {
          MutexLock inner(table->mutex_);
          if (table->timer_at_ == at) table->timer_at_ = Deadline::never();
        }
        table->step_quietly([&](rref::RRefProtocol& p) { p.on_timer(table->messenger_->now()); });
      });
    }
  }
  if (old != 0) messenger_->cancel(old);
}

RRefTable::HandlePtr RRefTable::adopt(std::shared_ptr<Result> value, const std::string& what) {
  publish_device_work();
  const HandleId id = step([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    const HandleId made = p.create_local(what);
    values_.emplace(made.rref, std::move(value));
    return made;
  });
  return std::make_shared<rref::Handle>(shared_from_this(), id);
}

RRefTable::HandlePtr RRefTable::create(int owner, const std::string& what) {
  const HandleId id =
      step([&](rref::RRefProtocol& p) { return p.create(run_of(owner), what, messenger_->now()); });
  return std::make_shared<rref::Handle>(shared_from_this(), id);
}

void RRefTable::creation_done(const HandleId& id) {
  step([&](rref::RRefProtocol& p) { p.creation_done(id, messenger_->now()); });
}

void RRefTable::creation_failed(const HandleId& id, const Error& why) {
  step([&](rref::RRefProtocol& p) { p.creation_failed(id, why, messenger_->now()); });
}

rref::ForkData RRefTable::fork(const rref::Handle& handle, int to) {
  return step(
      [&](rref::RRefProtocol& p) { return p.fork(handle.id(), run_of(to), messenger_->now()); });
}

void RRefTable::carrier_ended(int to, const ForkId& fork, bool arrived) {
  using Carrier = rref::RRefProtocol::Carrier;
  step_quietly([&](rref::RRefProtocol& p) {
    p.carrier_ended(run_of(to), std::span(&fork, 1), arrived ? Carrier::kArrived : Carrier::kFailed,
                    messenger_->now());
  });
}

RRefTable::HandlePtr RRefTable::received(int from, const rref::ForkData& data) {
  const int owner = data.rref.owner.rank;
  if (owner < 0 || static_cast<size_t>(owner) >= runs_.size()) {
    throw Error(Code::kCorrupt, "a reference to a value of rank " + std::to_string(owner) +
                                    ", which this job does not have")
        .worker(info_of(from).name);
  }
  const HandleId id = step(
      [&](rref::RRefProtocol& p) { return p.received(run_of(from), data, messenger_->now()); });
  return std::make_shared<rref::Handle>(shared_from_this(), id);
}

Future<void> RRefTable::confirmation(const rref::Handle& handle) {
  Promise<void> promise;
  step([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    const auto wait =
        p.wait_confirmed(std::span(&handle.id(), 1), Deadline::never(), messenger_->now());
    waits_.emplace(wait, promise);
  });
  return promise.future();
}

void RRefTable::check(const rref::Handle& handle) const {
  MutexLock lock(mutex_);
  if (auto failure = protocol_.failure_of(handle.id())) throw *failure;
}

bool RRefTable::confirmed(const rref::Handle& handle) const {
  MutexLock lock(mutex_);
  return protocol_.confirmed(handle.id());
}

Future<std::shared_ptr<Result>> RRefTable::local_value(const RRefId& id, int requester,
                                                       Deadline deadline) {
  Promise<void> made;
  {
    MutexLock lock(mutex_);
    if (protocol_.value(id) == rref::RRefProtocol::Value::kReady) {
      const auto value = values_.find(id);
      if (value == values_.end()) throw has_ended();
      return make_ready_future(value->second);
    }
  }
  step([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    waits_.emplace(p.wait_value(run_of(requester), id, deadline, messenger_->now()), made);
  });
  return made.future().then([self = shared_from_this(), id] {
    MutexLock lock(self->mutex_);
    const auto value = self->values_.find(id);
    if (value != self->values_.end()) return value->second;
    throw Error(Code::kNotFound, to_text(id) + " was released");
  });
}

rref::Counters RRefTable::counters() const {
  MutexLock lock(mutex_);
  return protocol_.counters();
}

std::vector<std::string> RRefTable::holdings() const {
  std::vector<std::string> lines;
  MutexLock lock(mutex_);
  for (const rref::Leak& leak : protocol_.holdings()) lines.push_back(describe(leak));
  return lines;
}

void RRefTable::drop(const HandleId& id) noexcept {
  step_quietly([&](rref::RRefProtocol& p) { p.drop(id, messenger_->now()); });
}

void RRefTable::drain(Deadline deadline) {
  if (log_enabled(LogLevel::kInfo)) {  // what the program has not let go of
    for (const std::string& one : holdings()) {
      log(LogLevel::kInfo, "rref",
          "worker '" + messenger_->self().name + "' shuts down while it holds " + one);
    }
  }
  Promise<rref::DrainReport> promise;
  const bool begun = step([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    if (p.drained()) return false;
    draining_ = promise;
    p.drain(deadline, messenger_->now());
    return true;
  });
  if (!begun) return;
  const auto report = promise.future();
  if (!messenger_->wait(*report.state(), deadline, -1)) {
    // The timer of that moment may not have run yet.
    step([&](rref::RRefProtocol& p) { p.end(messenger_->now()); });
  }
  if (!report.ready() || report.value().clean) return;
  log(LogLevel::kWarning, "rref",
      "worker '" + messenger_->self().name + "' leaves " +
          std::to_string(report.value().leak_count) + " remote references behind, and " +
          std::to_string(report.value().unheard) +
          " messages about references that nobody has acknowledged");
  for (const rref::Leak& leak : report.value().leaks) {
    log(LogLevel::kWarning, "rref", describe(leak));
  }
}

void RRefTable::stop() {
  step([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    last_values_.swap(values_);
    p.end(messenger_->now());
  });
}

void RRefTable::end() {
  Values values;  // destroyed outside the lock
  MutexLock lock(mutex_);
  values.swap(last_values_);
}

}  // namespace farspan
