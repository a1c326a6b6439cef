#include <farspan/rpc/device/device_room.h>

#include <ATen/Context.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/host.h>
#include <farspan/c10d/net/process.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/rpc/device/message_devices.h>
#include <farspan/rpc/device/streams.h>

namespace farspan {
namespace {

using device::DeviceMap;
using device::Place;

// Drawn once: a number of a process that was forked, or started later, is another one.
const std::string& this_process() {
  static const std::string name = [] {
    std::random_device random;
    return std::to_string(random()) + "-" + std::to_string(random());
  }();
  return name;
}

// Words between spaces. For one that is empty stands what is in no name.
constexpr char kEmpty[] = "~";
std::string word(const std::string& text) { return (text.empty() ? kEmpty : text) + " "; }

class Words {
 public:
  explicit Words(const std::string& text) : text_(text), words_(text) {}

  std::string next() {
    std::string word;
    if (!(words_ >> word)) refuse();
    return word == kEmpty ? "" : word;
  }
  int number(int most) {
    int value = 0;
    if (!(words_ >> value) || value < Place::kCpu || value > most) refuse();
    return value;
  }

 private:
  [[noreturn]] void refuse() const {
    throw Error(Code::kCorrupt, "no record of devices: '" + text_.substr(0, 80) + "'")
        .operation("read the store")
        .advice("is the store used by something else?");
  }

  const std::string& text_;
  std::istringstream words_;
};

constexpr int kMostDevices = 1 << 10, kMostWorkers = 1 << 20;

}  // namespace

std::string DeviceRecord::to_text() const {
  std::string text =
      word(kind) + word(host) + word(process) + word(mark) + word(std::to_string(uuids.size()));
  for (const std::string& uuid : uuids) text += word(uuid);
  text += word(std::to_string(maps.size()));
  for (const auto& [worker, map] : maps) {
    text += word(worker) + word(std::to_string(map.entries().size()));
    for (const auto& [here, there] : map.entries()) {
      text += word(std::to_string(here.device)) + word(std::to_string(there.device));
    }
  }
  return text;
}

DeviceRecord DeviceRecord::from_text(const std::string& text) {
  DeviceRecord record;
  Words words(text);
  record.kind = words.next();
  record.host = words.next();
  record.process = words.next();
  record.mark = words.next();
  for (int left = words.number(kMostDevices); left > 0; --left) {
    record.uuids.push_back(words.next());
  }
  for (int left = words.number(kMostWorkers); left > 0; --left) {
    DeviceMap& map = record.maps[words.next()];
    for (int entries = words.number(kMostDevices); entries > 0; --entries) {
      const Place here{words.number(kMostDevices)}, there{words.number(kMostDevices)};
      try {
        map.set(here, there);
      } catch (const Error& error) {
        throw Error(Code::kCorrupt, error.message());
      }
    }
  }
  return record;
}

DeviceRecord DeviceRecord::of_this_process(Maps maps) {
  for (const auto& [worker, map] : maps) {
    for (const auto& [here, there] : map.entries()) {
      const auto [least, most] = std::minmax(here.device, there.device);
      if (least >= Place::kCpu && most <= kMostDevices) continue;
      throw Error(Code::kInvalidArgument, here.text() + " to " + there.text() + ", for worker '" +
                                              worker + "': there is no such device")
          .operation("init_rpc");
    }
  }
  const auto accelerator = registered_accelerator();
  DeviceRecord record{"", net::host_id(), this_process(), net::process_mark(), {}, std::move(maps)};
  if (!accelerator || !accelerator->devices) return record;
  record.kind = accelerator->devices->kind();
  for (int device = 0; device < accelerator->devices->count(); ++device) {
    record.uuids.push_back(accelerator->devices->uuid(device));
  }
  return record;
}

void DeviceRoom::install(Worker& worker, std::vector<DeviceRecord> records,
                         DeviceToDevice device_to_device) {
  const auto count = [&](int rank) {
    return static_cast<int>(records[static_cast<size_t>(rank)].uuids.size());
  };
  for (const auto& [name, map] : records[static_cast<size_t>(worker.rank())].maps) {
    const int here = count(worker.rank()), there = count(worker.worker_info(name).rank);
    map.check(name, here, there);
    // Who has no devices knows nothing of maps, and would answer without one.
    if (!map.is_default() && (here == 0 || there == 0)) {
      throw Error(Code::kInvalidArgument, "device_maps has an entry for worker '" + name +
                                              "', and " + (here == 0 ? "this worker" : "that one") +
                                              " has no devices")
          .operation("init_rpc")
          .advice("leave it out, and move tensors with .cpu() and .to(device)");
    }
  }
  const auto accelerator = registered_accelerator();
  if (!accelerator) return;
  if (!accelerator->devices) {
    return log(LogLevel::kInfo, "device",
               "tensors travel between processors only: " + accelerator->why_none);
  }
  keep_device_order(accelerator->type);
  // Calls have streams of their own, so leaves get gradients from many: that is meant.
  at::globalContext().setWarnOnAccumulateGradStreamMismatch(false);
  const std::shared_ptr<DeviceRoom> room(
      new DeviceRoom(worker, *accelerator, std::move(records), device_to_device));
  worker.set_device_carrier(room);
  using Run = agent::Messenger::Run;
  worker.messenger().handle(wire::Kind::kDeviceProbe, Run::kInline,
                            [weak = room->weak_from_this()](agent::Request request) {
                              if (const auto self = weak.lock()) {
                                self->routes_.serve_probe(std::move(request));
                              }
                            });
  worker.messenger().handle(wire::Kind::kDeviceUnopened, Run::kInline,
                            [weak = room->weak_from_this()](agent::Request request) {
                              if (const auto self = weak.lock()) {
                                self->routes_.serve_unopened(std::move(request));
                              }
                            });
  worker.messenger().handle(
      wire::Kind::kDeviceRecall, Run::kInline,
      [uses = room->uses_](agent::Request request) { uses->serve_recall(std::move(request)); });
  worker.messenger().on_worker_lost([weak = room->weak_from_this()](int rank, const Error& why) {
    const auto self = weak.lock();
    if (!self) return;
    if (why.code() == Code::kShutdown) self->recalls_.has_left(rank);
    self->imports_.forget(export_key(rank));
    self->release_idle();
  });
  worker.messenger().on_worker_reached([weak = room->weak_from_this()](int rank) {
    if (const auto self = weak.lock()) self->try_ways(rank);
  });
}

DeviceRoom::DeviceRoom(Worker& worker, const Accelerator& accelerator,
                       std::vector<DeviceRecord> records, DeviceToDevice device_to_device)
    : worker_(worker),
      accelerator_(accelerator),
      records_(std::move(records)),
      last_export_(uint64_t{std::random_device()()} << 16),  // others remember those of runs before
      exports_(*accelerator_.devices),
      imports_(*accelerator_.devices),
      host_copies_(*accelerator_.devices),
      routes_(*this, device_to_device),
      recalls_(*this) {}

const DeviceMap& DeviceRoom::map_of(int caller, int callee) const {
  static const DeviceMap same;
  const auto& maps = records_[static_cast<size_t>(caller)].maps;
  const auto found = maps.find(name_of(callee));
  return found == maps.end() ? same : found->second;
}

DeviceRoom::Ways DeviceRoom::mapped_ways(int peer) const {
  Ways ways;
  const auto add = [&](Place here, Place there) {
    if (std::min(here, there).device > Place::kCpu) ways.emplace(here.device, there.device);
  };
  for (const auto& [here, there] : map_of(worker_.rank(), peer).entries()) add(here, there);
  for (const auto& [there, here] : map_of(peer, worker_.rank()).entries()) add(here, there);
  return ways;
}

DeviceRoom::Ways DeviceRoom::default_ways(int peer) const {
  Ways ways;
  if (!map_of(worker_.rank(), peer).is_default() && !map_of(peer, worker_.rank()).is_default()) {
    return ways;
  }
  for (int device = 0; device < std::min(devices_of(worker_.rank()), devices_of(peer)); ++device) {
    if (is_in_use(device)) ways.emplace(device, device);
  }
  return ways;
}

void DeviceRoom::try_ways(int peer) {
  using Which = DeviceRoutes::Which;
  std::vector<std::pair<Which, Ways>> all{{Which::kAny, mapped_ways(peer)},
                                          {Which::kInUse, default_ways(peer)}};
  std::erase_if(all, [](const auto& some) { return some.second.empty(); });
  if (all.empty()) return;
  worker_.messenger().run([weak = weak_from_this(), peer, all = std::move(all)] {
    for (const auto& [which, ways] : all) {
      for (const auto& [here, there] : ways) {
        if (const auto self = weak.lock()) self->routes_.try_early(peer, here, there, which);
      }
    }
  });
}

std::unique_ptr<MessageDevices> DeviceRoom::open(int peer, MessageWay way,
                                                 const DeviceTerms& terms) {
  return std::make_unique<MessageDevicesOf>(shared_from_this(), peer, way, terms);
}

std::unique_ptr<DeviceStreams> DeviceRoom::use_own_streams() {
  return std::make_unique<OwnStreams>(accelerator_.type);
}

void DeviceRoom::describe(Route& route) const {
  const int peer = worker_.worker_info(route.worker).rank;
  route.devices = routes_.known(peer);
  route.bytes_of_devices = routes_.bytes_come(peer);
}

const DeviceRecord& DeviceRoom::own() const noexcept {
  return records_[static_cast<size_t>(worker_.rank())];
}

const std::string& DeviceRoom::name_of(int rank) const {
  return worker_.workers()[static_cast<size_t>(rank)].name;
}

int DeviceRoom::place_there(int peer, MessageWay way, c10::Device here) const {
  if (!here.is_cpu() && here.type() != accelerator_.type) {
    throw Error(Code::kInvalidArgument, "a tensor on device " + here.str() + " cannot travel")
        .advice("move it with .cpu() first");
  }
  const Place place{here.is_cpu() ? Place::kCpu : here.index()};
  const bool asks = way == MessageWay::kRequest;
  const int caller = asks ? worker_.rank() : peer, callee = asks ? peer : worker_.rank();
  const DeviceMap& map = map_of(caller, callee);
  const Place there = asks ? map.there(name_of(callee), place) : map.here(name_of(callee), place);
  if (there.device < devices_of(peer)) return there.device;
  throw Error(Code::kInvalidArgument, "a tensor on " + place.text() + " is to arrive on " +
                                          there.text() + ", which worker '" + name_of(peer) +
                                          "' does not have")
      .advice("add, with a device that it has, at worker '" + name_of(caller) + "': " +
              (asks ? device::line_to_add(name_of(callee), place, {})
                    : device::line_to_add(name_of(callee), {}, place)) +
              "; and one for each other device, which a map with entries has to name");
}

int DeviceRoom::devices_of(int rank) const noexcept {
  return static_cast<int>(records_[static_cast<size_t>(rank)].uuids.size());
}

int DeviceRoom::checked_place(int peer, int place) const {
  if (place >= Place::kCpu && place < devices_of(peer)) return place;
  throw Error(Code::kInvalidArgument,
              "worker '" + name_of(peer) + "' has no device " + std::to_string(place))
      .advice("it has " + std::to_string(devices_of(peer)) + ", from 0 on");
}

c10::Device DeviceRoom::device_here(int place) const {
  if (place == Place::kCpu) return c10::kCPU;
  const int count = devices_of(worker_.rank());
  if (place >= 0 && place < count) {
    return {accelerator_.type, static_cast<c10::DeviceIndex>(place)};
  }
  throw Error(Code::kCorrupt,
              "a tensor for device " + std::to_string(place) + " of " + std::to_string(count));
}

bool DeviceRoom::is_in_use(int place) const {
  try {
    return at::globalContext()
        .getAcceleratorHooksInterface(accelerator_.type)
        .hasPrimaryContext(static_cast<c10::DeviceIndex>(place));
  } catch (const c10::Error&) {  // there are no hooks
    return false;
  }
}

DeviceRoom::Reach DeviceRoom::reach(int peer) const noexcept {
  const DeviceRecord& other = records_[static_cast<size_t>(peer)];
  if (other.process == own().process) return Reach::kSameProcess;
  if (other.host == own().host && other.kind == own().kind) return Reach::kByName;
  return Reach::kByHost;
}

std::string DeviceRoom::why_not_by_name(int peer) const {
  if (reach(peer) != Reach::kByHost) return "";
  const DeviceRecord& other = records_[static_cast<size_t>(peer)];
  return other.host != own().host ? "another host" : "its devices are of kind '" + other.kind + "'";
}

bool DeviceRoom::has_ended(int peer) const {
  return net::has_ended(records_[static_cast<size_t>(peer)].mark);
}

void DeviceRoom::import(int peer, const device::Export& from, void* to, device::Stream stream) {
  try {
    imports_.copy(export_key(peer), from, to, stream);
    release_idle();
  } catch (const Error& error) {
    release_idle();  // a part may have been opened
    if (error.code() == Code::kCorrupt) throw;
    throw Error(error.code(), error.message() + note_of_unseen(peer, from.device))
        .operation(error.operation())
        .advice(error.advice());
  }
}

// To be added to the reason why memory cannot be opened here.
std::string DeviceRoom::note_of_unseen(int peer, int device) const {
  if (device < 0 || device >= devices_of(peer)) return "";
  const std::string& uuid = records_[static_cast<size_t>(peer)].uuids[static_cast<size_t>(device)];
  if (std::ranges::find(own().uuids, uuid) != own().uuids.end()) return "";
  return "; its process does not see device " + uuid;
}

void DeviceRoom::release_idle() noexcept {
  if (looks_.exchange(true)) return;
  try {
    release_idle_later(worker_.messenger().now());
  } catch (const std::exception&) {  // no memory: the next use does
    looks_.store(false);
  }
}

// In a task, since it may have to wait for a device.
void DeviceRoom::release_idle_later(TimePoint at) {
  worker_.messenger().call_at(at, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->worker_.messenger().run([weak] {
      const auto live = weak.lock();
      if (!live) return;
      live->looks_.store(false);  // what is used from now on asks for another look
      const TimePoint now = live->worker_.messenger().now();
      const TimePoint next =
          std::min({live->imports_.close_idle(now), live->exports_.release_idle(now),
                    live->host_copies_.release_idle(now)});
      if (next != TimePoint::max() && !live->looks_.exchange(true)) live->release_idle_later(next);
    });
  });
}

}  // namespace farspan
