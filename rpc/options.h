// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What can be set: for a worker, when it joins, and for a single call.
//
// Threading: plain values; init_rpc and a call take a copy of theirs.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/device_map.h>
#include <farspan/rpc/agent/route.h>

namespace farspan {

namespace dist {
class Store;
}

// For one call.
struct CallOptions {
  // For the whole call; kNoTimeout: none. Absent: the worker's rpc_timeout. Inside a function that
  // another worker called, never later than that call's own deadline.
  std::optional<Millis> timeout;
};

// For a worker. Empty, absent or, where it makes no sense, zero: the default, or what the
// environment says.
struct WorkerOptions {
  // Who this is. Names are unique in the job: letters, digits, '_', '-', ':', '.', up to 128.
  int rank = -1;        // RANK
  int world_size = -1;  // WORLD_SIZE

  // Where the workers meet: env://, tcp://host:port, file:///path, redis://host:port,
  // etcd://host:port (c10d/store/rendezvous.h); or a store of the caller's.
  std::string init_method = "env://";
  std::shared_ptr<dist::Store> store;
  Millis init_timeout{300'000};

  Millis rpc_timeout{60'000};       // default of each call; kNoTimeout: none
  Millis shutdown_timeout{60'000};  // of a graceful shutdown; kNoTimeout: waits as long as it takes
  Millis connect_timeout{10'000};   // of the first call to a worker, with the handshake
  // A worker of which nothing is heard for so long, not even an answer to a ping, while a call or a
  // backward pass without a timeout waits for it, counts as lost, and that fails with
  // kDisconnected. A busy worker answers; one that was stopped, or whose host is down, does not.
  // kNoTimeout: never.
  Millis silence_timeout{30'000};

  // Ways to reach other workers, the best first: shm and unix (within a host), tcp, loopback
  // (within a process). Empty: shm, unix, tcp. One that fails for a pair of workers is left for the
  // next.
  std::vector<std::string> transports;
  // Worker::routes() says what became of both.
  CrossMemoryAttach cross_memory_attach = CrossMemoryAttach::kAllowed;
  // Connections beside the first one to a worker on another host, which carry large tensors there
  // and back, so that small calls do not wait behind these. They are opened when the first such
  // tensor travels. 0: none, nor to this worker.
  int lanes = 4;
  // The address that TCP listens on, and that others connect to. Empty: loopback when all workers
  // share a host, else the one that reaches the store.
  std::string bind_host;

  // For tensors of accelerators: where those sent to a worker arrive, by its name. Answers, and the
  // gradients of what was sent, go back by the inverse. A worker that is not named here has the
  // default map: each device to the one of the same number. init_rpc() checks them.
  std::map<std::string, device::DeviceMap> device_maps;
  // Of what this worker sends to devices. Worker::routes() says what became of it.
  DeviceToDevice device_to_device = DeviceToDevice::kAllowed;

  int threads = 0;        // functions that run at once and do not wait; 0: the cores, from 2 to 16
  int max_threads = 256;  // with those that wait
  // For how long, at most, a thread polls for a message before it sleeps, where most have come that
  // soon lately and no other thread of this host lacks a processor (else it looks between their
  // turns, a few times); 0: it sleeps at once. While the bytes of a large message pass it polls on.
  // Answers of a function that always takes about the same time, and longer than this, are polled
  // for around the time when they are due: five times as long, at most.
  std::chrono::microseconds max_polling{200};
  uint64_t max_in_flight_bytes = uint64_t{256} << 20;  // of calls to one worker; more must wait
};

}  // namespace farspan
