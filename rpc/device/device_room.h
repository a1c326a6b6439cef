// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceRoom: what a worker knows of accelerators, its own and those of the others.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/device/device_map.h>
#include <farspan/c10d/device/exports.h>
#include <farspan/c10d/device/host_copies.h>
#include <farspan/c10d/device/imports.h>
#include <farspan/rpc/device/accelerator.h>
#include <farspan/rpc/device/device_routes.h>
#include <farspan/rpc/device/recalls.h>
#include <farspan/rpc/device/uses.h>
#include <farspan/rpc/worker.h>

namespace farspan {

// What workers tell each other when they join.
struct DeviceRecord {
  using Maps = std::map<std::string, device::DeviceMap>;

  std::string kind;                // "cuda"; empty: none
  std::string host;                // net::host_id()
  std::string process;             // the same for workers of one process, and only these
  std::string mark;                // of that, net::process_mark()
  std::vector<std::string> uuids;  // of its devices, by their numbers
  Maps maps;                       // its own, by the worker that it sends to

  static DeviceRecord of_this_process(Maps maps);
  std::string to_text() const;
  //   throws  Error kCorrupt
  static DeviceRecord from_text(const std::string& text);
};

// Threading: every method from any thread.
class DeviceRoom final : public DeviceCarrier, public std::enable_shared_from_this<DeviceRoom> {
 public:
  // How device memory of this worker gets to another one.
  enum class Reach {
    kSameProcess,  // copied from where it is
    kByName,       // opened there, and copied
    kByHost        // through the processor's memory
  };

  // Before the worker's first call. Does nothing in a process without an accelerator.
  //   records  of all workers, by rank
  //   throws   Error kInvalidArgument: a map of its own names a worker or device that is not there
  static void install(Worker& worker, std::vector<DeviceRecord> records,
                      DeviceToDevice device_to_device = DeviceToDevice::kAllowed);

  std::unique_ptr<MessageDevices> open(int peer, MessageWay way, const DeviceTerms& terms) override;
  std::unique_ptr<DeviceStreams> use_own_streams() override;
  void describe(Route& route) const override;
  void end() noexcept override { exports_.close(); }
  uint64_t bytes_come() const noexcept override { return routes_.bytes_come(); }

  //   throws  Error kInvalidArgument: a device of another kind, or one that is mapped to none
  int place_there(int peer, MessageWay way, c10::Device here) const;
  // Of that worker's devices.
  //   throws  Error kInvalidArgument: it has no such device
  int checked_place(int peer, int place) const;
  //   throws  Error kCorrupt: there is no such device
  c10::Device device_here(int place) const;
  // Whether this process uses that device of its own already: what it is tried with makes a
  // context of it, of some hundred MB.
  bool is_in_use(int place) const;
  Reach reach(int peer) const noexcept;
  //   returns  why it is not another one; empty where it is as direct as can be
  std::string why_not_by_name(int peer) const;
  // Whether that worker's process has ended, as far as this one can see.
  bool has_ended(int peer) const;
  // As Imports::copy(), of what that worker lends; says so where this process does not see the
  // device, by whatever number.
  void import(int peer, const device::Export& from, void* to, device::Stream stream);

  Worker& worker() noexcept { return worker_; }
  device::Devices& devices() noexcept { return *accelerator_.devices; }
  device::Exports& exports() noexcept { return exports_; }
  device::HostCopies& host_copies() noexcept { return host_copies_; }
  Recalls& recalls() noexcept { return recalls_; }
  Uses& uses() noexcept { return *uses_; }
  DeviceRoutes& routes() noexcept { return routes_; }
  // Sees to it that what nobody uses any more is closed and released in time. After each use.
  void release_idle() noexcept;
  uint64_t next_export() noexcept { return last_export_.fetch_add(1) + 1; }

 private:
  DeviceRoom(Worker& worker, const Accelerator& accelerator, std::vector<DeviceRecord> records,
             DeviceToDevice device_to_device);
  const DeviceRecord& own() const noexcept;
  int devices_of(int rank) const noexcept;
  const std::string& name_of(int rank) const;
  // From this worker's device (first) to the peer's (second), of requests and answers: those that
  // maps name; those of the default map, of devices that this process uses.
  using Ways = std::set<std::pair<int, int>>;
  Ways mapped_ways(int peer) const;
  Ways default_ways(int peer) const;
  const device::DeviceMap& map_of(int caller, int callee) const;
  // In another thread.
  void try_ways(int peer);
  std::string note_of_unseen(int peer, int device) const;
  // Under which imports_ knows what a worker exports.
  static uint64_t export_key(int peer) noexcept { return static_cast<uint64_t>(peer); }
  void release_idle_later(TimePoint at);

  Worker& worker_;
  const Accelerator accelerator_;
  const std::vector<DeviceRecord> records_;
  std::atomic<uint64_t> last_export_;
  std::atomic<bool> looks_{false};  // a timer is set for what is idle
  device::Exports exports_;
  device::Imports imports_;
  device::HostCopies host_copies_;
  DeviceRoutes routes_;
  const std::shared_ptr<Uses> uses_ = std::make_shared<Uses>();
  Recalls recalls_;
};

}  // namespace farspan
