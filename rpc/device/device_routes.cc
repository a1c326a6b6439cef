#include <farspan/rpc/device/device_routes.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/device/device_map.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/by_host.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

using std::chrono::seconds;

constexpr seconds kAnswerWithin{10}, kAgainAfter{10};
constexpr size_t kMostSaid = 200;  // characters of another worker's reason

std::string text_of(int device) { return device::Place{device}.text(); }

uint64_t random_number() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// A number of a device and one of the processor, and a stream of their own: what others have given
// the device does not hold up its copies. Its end waits for the device.
class Spot {
 public:
  static constexpr size_t kBytes = sizeof(uint64_t);

  // Whoever lets go of it last may not wait for a device: a task does.
  static std::shared_ptr<Spot> make(DeviceRoom& room, int device) {
    const std::weak_ptr<agent::Messenger> messenger = room.worker().share_messenger();
    return {new Spot(room.devices(), device), [messenger](Spot* spot) {
              const std::shared_ptr<Spot> last(spot, [](Spot* one) { delete one; });
              if (const auto here = messenger.lock()) here->run([last] {});
            }};
  }

  device::Stream stream() const noexcept { return stream_; }
  void* memory() const noexcept { return memory_; }
  uint64_t& number() const noexcept { return *number_; }
  void write() { devices_.copy(stream_, memory_, number_, kBytes); }
  void read() { devices_.copy(stream_, number_, memory_, kBytes); }

 private:
  Spot(device::Devices& devices, int device)
      : devices_(devices), stream_(devices.new_stream(device)) {
    try {
      memory_ = devices_.allocate(device, kBytes);
      number_ = static_cast<uint64_t*>(devices_.allocate_host(kBytes));
    } catch (...) {
      if (memory_) devices_.release(memory_);
      devices_.end_stream(stream_);
      throw;
    }
  }
  ~Spot() {
    bool is_done = false;
    try {
      is_done = devices_.synchronize(stream_, Deadline::after(kAnswerWithin));
    } catch (const Error&) {  // it has failed: what uses it is told
    }
    devices_.end_stream(stream_);
    if (!is_done) return;  // the device hangs, and would write there
    devices_.release(memory_);
    devices_.release_host(number_);
  }

  device::Devices& devices_;
  const device::Stream stream_;
  void* memory_ = nullptr;
  uint64_t* number_ = nullptr;
};

class Answer final : public agent::ReplyHandler {
 public:
  using Frame = std::shared_ptr<wire::InFrame>;

  void on_reply(wire::InFrame&& reply) noexcept override {
    promise_.set_value(std::make_shared<wire::InFrame>(std::move(reply)));
  }
  void on_error(const Error& why) noexcept override { promise_.set_error(why); }
  Future<Frame> frame() const { return promise_.future(); }

 private:
  Promise<Frame> promise_;
};

// Waits for the answer, and whatever becomes of it ends by the deadline.
//   throws  Error: that worker has not answered
Answer::Frame ask_worker(agent::Messenger& messenger, int peer, wire::Kind kind, MetaBuilder& meta,
                         Deadline deadline) {
  const auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  frame.header.kind = kind;
  frame.meta = meta.finish();
  messenger.call(peer, frame, deadline, answer, true);
  messenger.wait(*answer->frame().state(), Deadline::never(), peer);
  return answer->frame().value();
}

// Says nothing about devices: it may go another time.
bool is_passing(const Error& error) {
  constexpr Code kPassing[] = {Code::kTimeout, Code::kOverloaded, Code::kShutdown,
                               Code::kCancelled};
  return std::ranges::find(kPassing, error.code()) != std::end(kPassing);
}

}  // namespace

bool DeviceRoutes::is_direct(int peer, int here, int there, Deadline deadline) {
  const Key key{peer, here, there};
  for (;;) {
    std::shared_ptr<Trial> trial;
    bool is_mine = false;
    {
      MutexLock lock(mutex_);
      Found& found = found_[key];
      if (found.known_until > Clock::now()) {
        if (found.why_not_direct.empty()) return true;
        break;
      }
      is_mine = !found.trial;
      if (is_mine) found.trial = std::make_shared<Trial>();
      trial = found.trial;
    }
    if (is_mine) {
      try_once(key, *trial, deadline);
    } else if (!room_.worker().messenger().wait(*trial, deadline, peer)) {
      throw Error(Code::kTimeout, "its devices were still being tried").operation("send a tensor");
    }
  }
  std::string why;
  {
    MutexLock lock(mutex_);
    why = found_[key].why_not_direct;
  }
  refuse_if_required(peer, here, there, why);
  return false;
}

void DeviceRoutes::find_out_early(int peer, int here, int there) {
  const bool must = device_to_device_ == DeviceToDevice::kRequired;
  const Deadline limit =
      must ? Deadline::in(room_.worker().rpc_timeout()) : Deadline::after(kAnswerWithin);
  try {
    is_direct(peer, here, there, limit);
  } catch (const Error& error) {  // the first tensor will tell
    const bool is_refused = must && error.code() == Code::kUnavailable;
    log(is_refused ? LogLevel::kWarning : LogLevel::kDebug, "device", error.what());
  }
}

void DeviceRoutes::try_once(const Key& key, Trial& trial, Deadline deadline) {
  const auto& [peer, here, there] = key;
  std::exception_ptr failure;
  std::optional<Verdict> verdict;
  try {
    verdict = find_out(peer, here, there, deadline);
  } catch (...) {
    failure = std::current_exception();
  }
  bool is_news = false;
  {
    MutexLock lock(mutex_);
    Found& found = found_[key];
    found.trial = nullptr;
    if (verdict) {
      is_news = found.known_until == TimePoint() || found.why_not_direct != verdict->why_not_direct;
      found.why_not_direct = verdict->why_not_direct;
      found.known_until = verdict->is_passing ? Clock::now() + kAgainAfter : TimePoint::max();
    }
  }
  if (is_news) tell(LogLevel::kInfo, peer, here, there, verdict->why_not_direct);
  trial.end();
  if (failure) std::rethrow_exception(failure);
}

Buffer DeviceRoutes::fetch_unopened(int peer, const device::Export& lent, int here,
                                    const Error& why, Deadline deadline) {
  agent::Messenger& messenger = room_.worker().messenger();
  MetaBuilder builder;
  auto out = builder.init_root<schema::DeviceUnopened>();
  out.setHere(static_cast<int16_t>(lent.device));
  out.setThere(static_cast<int16_t>(here));
  out.setWhy(why.message());
  if (device_to_device_ == DeviceToDevice::kRequired) {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kDeviceUnopened;
    frame.meta = builder.finish();
    messenger.post(peer, frame);
    throw Error(why);
  }
  write_export(lent, out.initLent());
  const auto answer = ask_worker(messenger, peer, wire::Kind::kDeviceUnopened, builder, deadline);
  if (answer->failed()) throw wire::decode_error(answer->meta.span());
  if (answer->segments.size() != 1 || answer->segments[0].size() != lent.bytes) {
    throw Error(Code::kCorrupt, "an answer without the bytes that were lent");
  }
  const Buffer& bytes = answer->segments[0];
  return bytes.owner() ? bytes : Buffer::copy_of(bytes.span());
}

void DeviceRoutes::serve_unopened(agent::Request request) {
  try {
    int here = 0, there = 0;
    std::string why;
    std::optional<device::Export> lent;
    guard_read([&] {
      MetaReader reader(request.frame().meta.span());
      const auto said = reader.root<schema::DeviceUnopened>();
      here = said.getHere();
      there = said.getThere();
      why = std::string(said.getWhy()).substr(0, kMostSaid);
      if (said.hasLent()) lent = read_export(said.getLent());
    });
    std::ranges::replace_if(
        why, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
    hear_unopened(request.from(), here, there, "what had gone well does not any more: " + why);
    if (request.one_way() || !lent) return;
    refuse_if_required(request.from(), here, there, why);
    request.reply({}, {copy_lent(*lent, request.deadline())});
  } catch (const Error& error) {
    request.fail(error);
  } catch (const c10::Error& error) {
    request.fail(Error(Code::kUnavailable, error.what_without_backtrace()));
  }
}

// Of a route that was direct only: nobody can have others remembered, or say anything of them.
void DeviceRoutes::hear_unopened(int peer, int here, int there, const std::string& why) {
  {
    MutexLock lock(mutex_);
    const auto found = found_.find({peer, here, there});
    if (found == found_.end() || found->second.known_until == TimePoint()) return;
    Found& route = found->second;
    if (!route.why_not_direct.empty()) return;
    route.why_not_direct = why;
    route.known_until = Clock::now() + kAgainAfter * (1 << std::min(route.times_unopened++, 6));
  }
  tell(LogLevel::kInfo, peer, here, there, why);
}

Buffer DeviceRoutes::copy_lent(const device::Export& lent, Deadline deadline) {
  if (room_.device_here(lent.device).is_cpu()) throw Error(Code::kCorrupt, "no device lends that");
  device::Devices& devices = room_.devices();
  const device::Stream stream = devices.new_stream(lent.device);
  const std::shared_ptr<void> end(nullptr, [&](void*) { devices.end_stream(stream); });
  const auto memory = room_.exports().read(lent, stream);
  if (!memory) throw Error(Code::kCorrupt, "what is asked for is lent no more");
  try {
    return copy_to_host(room_, stream, memory.get(), lent.bytes, deadline);
  } catch (...) {
    room_.let_go_behind(stream, memory);  // the device may read there still
    throw;
  }
}

void DeviceRoutes::refuse_if_required(int peer, int here, int there, const std::string& why) const {
  if (device_to_device_ != DeviceToDevice::kRequired) return;
  throw Error(Code::kUnavailable, "a tensor on " + text_of(here) + " cannot go straight to " +
                                      text_of(there) + " of worker '" +
                                      room_.worker().messenger().worker_name(peer) + "': " + why)
      .operation("send a tensor")
      .advice("mend that, or let it go through the processor's memory: DeviceToDevice::kAllowed");
}

void DeviceRoutes::note_staged(int peer, int here, int there, uint64_t bytes) {
  MutexLock lock(mutex_);
  found_[{peer, here, there}].staged += bytes;
}

void DeviceRoutes::note_not_staged(int peer, int here, int there, uint64_t bytes) {
  const std::string why =
      std::to_string(bytes) +
      " bytes lie in memory that other processes cannot open, and find no room "
      "in the " +
      std::to_string(room_.exports().staging()) +
      " for copies of such, or on the device; allocate them otherwise (PyTorch: without "
      "expandable_segments)";
  refuse_if_required(peer, here, there, why);
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    uint64_t& all = found_[{peer, here, there}].not_staged;
    is_first = all == 0;
    all += bytes;
  }
  if (is_first) tell(LogLevel::kWarning, peer, here, there, why);
}

DeviceRoutes::Verdict DeviceRoutes::find_out(int peer, int here, int there, Deadline deadline) {
  if (device_to_device_ == DeviceToDevice::kForbidden) return {"this worker does not allow it"};
  const DeviceRoom::Reach reach = room_.reach(peer);
  if (reach == DeviceRoom::Reach::kByHost) return {room_.why_not_by_name(peer)};
  try {
    return ask(peer, here, there, deadline);
  } catch (const c10::Error& error) {
    return {error.what_without_backtrace()};
  }
}

// A number in the device's memory goes the way of a tensor.
DeviceRoutes::Verdict DeviceRoutes::ask(int peer, int here, int there, Deadline deadline) {
  MetaBuilder builder;
  auto probe = builder.init_root<schema::DeviceProbe>();
  probe.setThere(static_cast<int16_t>(there));
  const uint64_t id = room_.next_export();
  const std::shared_ptr<void> taken(nullptr, [this, id](void*) { room_.exports().taken(id); });
  if (room_.reach(peer) == DeviceRoom::Reach::kByName) {
    try {
      const auto spot = Spot::make(room_, here);
      probe.setNumber(spot->number() = random_number());
      spot->write();
      const auto made =
          room_.exports().make(id, spot->memory(), Spot::kBytes, spot->stream(), spot);
      if (!made) return {"too much is staged of memory that others cannot open", true};
      write_export(*made, probe.initFrom());
    } catch (const Error& error) {
      return {error.message(), is_passing(error)};
    }
  }
  // Who may go another way does not wait for as long as his call may take.
  const bool must_wait = device_to_device_ == DeviceToDevice::kRequired;
  const Deadline limit = Deadline::after(kAnswerWithin);
  try {
    const auto answer = ask_worker(room_.worker().messenger(), peer, wire::Kind::kDeviceProbe,
                                   builder, must_wait ? deadline : earlier(deadline, limit));
    if (!answer->failed()) return {""};
    const Error objection = wire::decode_error(answer->meta.span());
    return {objection.message(), is_passing(objection)};
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout || must_wait || deadline.expired()) throw;
    return {"that worker has not tried it in time", true};
  }
}

void DeviceRoutes::serve_probe(agent::Request request) {
  try {
    if (device_to_device_ == DeviceToDevice::kForbidden) {
      throw Error(Code::kUnavailable, "it does not allow it");
    }
    copy_and_look(request.from(), request.frame(), request.deadline());
    request.reply({});
  } catch (const Error& error) {
    request.fail(error);
  } catch (const c10::Error& error) {
    request.fail(Error(Code::kUnavailable, error.what_without_backtrace()));
  }
}

void DeviceRoutes::copy_and_look(int peer, const wire::InFrame& frame, Deadline deadline) {
  device::Export from;
  int there = 0;
  uint64_t number = 0;
  bool has_memory = false;
  guard_read([&] {
    MetaReader reader(frame.meta.span());
    const auto probe = reader.root<schema::DeviceProbe>();
    there = probe.getThere();
    number = probe.getNumber();
    has_memory = probe.hasFrom();
    if (has_memory) from = read_export(probe.getFrom());
  });
  const at::Device device = room_.device_here(there);
  if (!has_memory) return;  // between workers of one process
  if (device.is_cpu() || from.bytes != Spot::kBytes) {
    throw Error(Code::kCorrupt, "a probe of something else than a device");
  }
  const auto spot = Spot::make(room_, there);
  room_.import(peer, from, spot->memory(), spot->stream());
  spot->read();
  if (!room_.devices().synchronize(spot->stream(), deadline)) {
    throw Error(Code::kTimeout, "the device was busy");
  }
  if (spot->number() != number) {
    throw Error(Code::kUnavailable, "what " + text_of(there) + " reads there is something else");
  }
}

void DeviceRoutes::tell(LogLevel level, int peer, int here, int there,
                        const std::string& why) const {
  const std::string to =
      text_of(there) + " of worker '" + room_.worker().messenger().worker_name(peer) + "'";
  log(level, "device",
      "tensors go from " + text_of(here) + " to " + to +
          (why.empty() ? ", from device to device" : " through the processor's memory: " + why));
}

void DeviceRoutes::note_come(int peer, uint64_t bytes) {
  MutexLock lock(mutex_);
  come_[peer] += bytes;
}

std::vector<DeviceRoute> DeviceRoutes::known(int peer) const {
  std::vector<DeviceRoute> all;
  MutexLock lock(mutex_);
  for (const auto& [key, found] : found_) {
    const auto& [to, here, there] = key;
    if (to != peer || found.known_until == TimePoint()) continue;
    all.push_back({here, there, found.why_not_direct.empty(), found.why_not_direct, found.staged,
                   found.not_staged});
  }
  return all;
}

uint64_t DeviceRoutes::bytes_come(int peer) const {
  MutexLock lock(mutex_);
  const auto found = come_.find(peer);
  return found == come_.end() ? 0 : found->second;
}

uint64_t DeviceRoutes::bytes_come() const noexcept {
  uint64_t sum = 0;
  MutexLock lock(mutex_);
  for (const auto& [peer, bytes] : come_) sum += bytes;
  return sum;
}

}  // namespace farspan
