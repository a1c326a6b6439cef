#include <farspan/rpc/init/init.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/host.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/store/address_towards.h>
#include <farspan/c10d/store/generation.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/rendezvous.h>
#include <farspan/rpc/agent/agent.h>
#include <farspan/rpc/call/registry.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/init/assembly.h>
#include <farspan/rpc/init/rooms.h>

namespace farspan {
namespace {

constexpr size_t kMaxNameBytes = 128;

// The process's worker: what the free functions work on.
struct OwnWorker {
  Mutex mutex;
  std::shared_ptr<Worker> worker FARSPAN_GUARDED_BY(mutex);
  bool joining FARSPAN_GUARDED_BY(mutex) = false;
};

OwnWorker& own_worker() {
  static OwnWorker* own = new OwnWorker;  // never destroyed: threads may outlive main()
  return *own;
}

void check_name(const std::string& name) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == ':' || c == '.';
  };
  if (!name.empty() && name.size() <= kMaxNameBytes &&
      std::all_of(name.begin(), name.end(), allowed)) {
    return;
  }
  throw Error(Code::kInvalidArgument, "'" + name + "' is no name for a worker")
      .operation("init_rpc")
      .advice("use 1 to 128 letters, digits, '_', '-', ':' or '.'");
}

dist::Rendezvous meeting_place(const WorkerOptions& options) {
  dist::RendezvousOptions where;
  where.rank = options.rank;
  where.world_size = options.world_size;
  where.timeout = options.init_timeout;
  where.store = options.store;
  return dist::rendezvous(options.init_method, where);
}

// Loopback while all share this host; else the address by which this host reaches the store.
//   hosts  of all ranks
std::string choose_bind_host(const std::vector<std::string>& hosts, dist::Store& store) {
  const std::string mine = net::host_id();
  const bool one_host =
      std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == mine; });
  if (one_host) return "127.0.0.1";
  if (auto own = dist::address_towards(store)) return *own;
  throw Error(Code::kInvalidArgument, "no address of this host is known that other hosts reach")
      .operation("init_rpc")
      .advice("set WorkerOptions::bind_host");
}

void check_names(const std::vector<agent::PeerRecord>& records, int self) {
  const std::string& mine = records[static_cast<size_t>(self)].info.name;
  for (const auto& record : records) {
    if (record.info.rank == self || record.info.name != mine) continue;
    throw Error(Code::kAlreadyExists, "ranks " + std::to_string(std::min(self, record.info.rank)) +
                                          " and " +
                                          std::to_string(std::max(self, record.info.rank)) +
                                          " are both called '" + mine + "'")
        .operation("init_rpc")
        .advice("give each worker a name of its own, \"trainer\" + std::to_string(rank), say");
  }
}

// What workers tell each other in one value: of their devices a line, and the rest.
struct Record {
  agent::PeerRecord worker;
  DeviceRecord devices;

  std::string to_text() const { return devices.to_text() + "\n" + worker.to_text(); }
  static Record from_text(const std::string& text) {
    const size_t end = text.find('\n');
    return {agent::PeerRecord::from_text(text.substr(std::min(end, text.size() - 1) + 1)),
            DeviceRecord::from_text(text.substr(0, end))};
  }
};

agent::AgentOptions agent_options(const std::string& name, const WorkerOptions& options) {
  agent::AgentOptions setup;
  setup.self.name = name;
  setup.transports = options.transports;
  setup.bind_host = options.bind_host;
  setup.connect_timeout = options.connect_timeout;
  setup.reactor.threads = options.threads;
  setup.reactor.max_threads = options.max_threads;
  setup.reactor.max_spin = options.max_polling;
  setup.connection.cross_memory_attach = options.cross_memory_attach;
  setup.connection.max_in_flight_bytes = options.max_in_flight_bytes;
  setup.connection.silence_timeout = options.silence_timeout;
  setup.connection.lanes = options.lanes;
  for (const Function* function : Registry::global().all()) {
    setup.functions.push_back({function->id, function->name, function->signature});
  }
  return setup;
}

std::shared_ptr<Worker> join_others(Assembly& all, const dist::Rendezvous& job,
                                    agent::AgentOptions setup, const WorkerOptions& options) {
  const auto hosts = all.exchange(Assembly::Step::kHosts, net::host_id());
  if (setup.bind_host.empty()) setup.bind_host = choose_bind_host(hosts, *job.store);
  auto agent = std::make_shared<agent::Agent>(std::move(setup));
  const Record own{agent->record(), DeviceRecord::of_this_process(options.device_maps)};
  std::vector<agent::PeerRecord> records;
  std::vector<DeviceRecord> devices;
  for (const std::string& text : all.exchange(Assembly::Step::kWorkers, own.to_text())) {
    Record one = Record::from_text(text);
    records.push_back(std::move(one.worker));
    devices.push_back(std::move(one.devices));
  }
  check_names(records, job.rank);
  agent->set_workers(std::move(records));
  auto worker = Worker::make(agent, {options.rpc_timeout, options.shutdown_timeout});
  // The store may be hosted here: others can still be reading from it when this one has joined.
  worker->set_stop([agent = agent.get(), store = job.store]() mutable {
    agent->stop();
    store.reset();
  });
  DeviceRoom::install(*worker, std::move(devices), options.device_to_device);
  furnish(*worker);
  all.exchange(Assembly::Step::kReady, "");  // each can be called now
  return worker;
}

std::shared_ptr<Worker> join(const std::string& name, const WorkerOptions& options) {
  const Deadline deadline = Deadline::in(options.init_timeout);
  Registry::global().check();
  for (const auto& [callee, map] : options.device_maps) check_name(callee);
  for (const std::string& note : Registry::global().notes()) log(LogLevel::kInfo, "call", note);
  const dist::Rendezvous job = meeting_place(options);
  agent::AgentOptions setup = agent_options(name, options);
  setup.self.rank = job.rank;
  setup.generation = dist::agree_on_generation(*job.store, job.rank, job.world_size, deadline);
  dist::PrefixStore store("farspan/" + setup.generation + "/rpc", job.store);
  Assembly all(store, job.rank, job.world_size, deadline);
  try {
    return join_others(all, job, std::move(setup), options);
  } catch (...) {
    all.refuse(name, to_error(std::current_exception()));
    throw;
  }
}

}  // namespace

std::shared_ptr<Worker> init_rpc(const std::string& name, WorkerOptions options) {
  check_name(name);
  {
    MutexLock lock(own_worker().mutex);
    if (own_worker().worker || own_worker().joining) {
      throw Error(Code::kInvalidArgument, "this process is a worker already")
          .operation("init_rpc")
          .advice("call shutdown() before it joins again");
    }
    own_worker().joining = true;
  }
  std::shared_ptr<Worker> worker;
  std::exception_ptr failure;
  try {
    worker = join(name, options);
  } catch (...) {
    failure = std::current_exception();
  }
  MutexLock lock(own_worker().mutex);
  own_worker().joining = false;
  if (failure) std::rethrow_exception(failure);
  own_worker().worker = worker;
  return worker;
}

bool has_joined() noexcept {
  MutexLock lock(own_worker().mutex);
  return own_worker().worker || own_worker().joining;
}

void shutdown(bool graceful) {
  std::shared_ptr<Worker> worker;
  {
    MutexLock lock(own_worker().mutex);
    worker = own_worker().worker;
    // What the worker runs is refused below, and the process keeps its worker.
    if (!net::inside_reactor()) own_worker().worker = nullptr;
  }
  if (!worker) {
    throw Error(Code::kInvalidArgument, "this process is no worker of a job")
        .operation("shutdown")
        .advice("call init_rpc(name) first, and shutdown() once");
  }
  worker->shutdown(graceful);
}

}  // namespace farspan
