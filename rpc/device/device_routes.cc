#include <farspan/rpc/device/device_routes.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/device_map.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/by_host.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/device/ended_by_task.h>
#include <farspan/rpc/device/probe.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

using std::chrono::seconds;

constexpr seconds kAnswerWithin{10}, kAgainAfter{10};
constexpr std::chrono::milliseconds kLookWhoIsThere{100};
constexpr size_t kMostSaid = 200;  // characters of another worker's reason

std::string text_of(int device) { return device::Place{device}.text(); }

uint64_t random_number() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// Memory that this worker lends, copied for who cannot open it. Its end waits for the device.
class LentCopy {
 public:
  static std::shared_ptr<LentCopy> make(DeviceRoom& room, const device::Export& lent) {
    return ended_by_task(room, std::make_unique<LentCopy>(room.shared_from_this(), lent));
  }
  LentCopy(std::shared_ptr<DeviceRoom> room, const device::Export& lent)
      : room_(std::move(room)), lent_(lent), stream_(room_->devices().new_stream(lent.device)) {}
  ~LentCopy() {
    if (finish(room_->devices(), stream_)) return;
    new std::shared_ptr<const void>(memory_);  // the device hangs, and would read it
  }
  LentCopy(const LentCopy&) = delete;
  LentCopy& operator=(const LentCopy&) = delete;

  Buffer bytes_for(const agent::Request& request) {
    const Error gone(Code::kDisconnected, "the line that it was lent on has ended");
    memory_ = room_->exports().read(lent_, stream_);
    if (!memory_) throw Error(gone);
    const auto written = std::make_shared<device::Arrival>();
    room_->devices().then(stream_, [written] { written->come(); });
    const Deadline deadline = request.deadline();
    while (!written->wait(earlier(deadline, Deadline::after(kLookWhoIsThere)))) {
      if (deadline.expired()) break;  // the copy will say so
      if (!request.route()->leads_back()) throw Error(gone);
    }
    return copy_to_host(*room_, stream_, memory_.get(), lent_.bytes, deadline);
  }

 private:
  const std::shared_ptr<DeviceRoom> room_;
  const device::Export lent_;
  const device::Stream stream_;
  std::shared_ptr<const void> memory_;
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

// In the chain of the call that is being served: a thread that waits in it may serve this, too.
wire::OutFrame request_of(wire::Kind kind, MetaBuilder& meta) {
  wire::OutFrame frame;
  frame.header.kind = kind;
  frame.header.chain = agent::current_call().chain;
  frame.meta = meta.finish();
  return frame;
}

// Serves a request on a thread that may block for devices. It is not turned away where too many
// threads wait, as calls are: some of them may wait for this.
void run_with(DeviceRoom& room, agent::Request request,
              std::function<void(DeviceRoom&, agent::Request&)> serve) {
  const auto asked = std::make_shared<agent::Request>(std::move(request));
  room.worker().messenger().run(
      [weak = room.weak_from_this(), asked, serve = std::move(serve)] {
        const auto there = weak.lock();
        if (!there) return;
        try {
          serve(*there, *asked);
        } catch (const Error& error) {
          asked->fail(error);
        } catch (const c10::Error& error) {
          asked->fail(Error(Code::kUnavailable, error.what_without_backtrace()));
        }
      },
      [asked](const Error& why) { asked->fail(why); });
}

// Why a way is not taken that one of both workers does not want.
constexpr const char* kNotAllowedHere = "this worker does not allow it";
constexpr const char* kNotAllowedThere = "it does not allow it";

constexpr const char* kLetThemOpen =
    "; let processes open each other's device memory (of one user, in containers with --ipc=host "
    "and one --pid namespace), or say DeviceToDevice::kForbidden";

// Says nothing about devices: it may go another time.
bool is_passing(const Error& error) {
  constexpr Code kPassing[] = {Code::kTimeout, Code::kOverloaded, Code::kShutdown,
                               Code::kCancelled};
  return std::ranges::find(kPassing, error.code()) != std::end(kPassing);
}

}  // namespace

// A way that is being tried. It holds the worker until it has ended, as each call does.
class DeviceRoutes::Trial final : public FutureCore, public agent::ReplyHandler {
 public:
  Trial(DeviceRoom& room, const Key& way, Deadline limit, Which devices)
      : key(way),
        deadline(limit),
        which(devices),
        worker_(room.worker().shared_from_this()),
        room_(room) {}

  void on_reply(wire::InFrame&& reply) noexcept override {
    if (reply.failed()) leave();
    try {
      if (!reply.failed()) {
        if (Probe::was_tried(reply)) return room_.routes().end(*this, {""});
        return room_.routes().end_without_verdict(*this, std::nullopt);
      }
      const Error objection = wire::decode_error(reply.meta.span());
      room_.routes().end(*this, {objection.message(), is_passing(objection)});
    } catch (const Error& malformed) {
      room_.routes().end_without_verdict(*this, malformed);
    }
  }
  void on_error(const Error& why) noexcept override {
    leave();
    const bool may_go_otherwise = !room_.routes().is_required() && !deadline.expired();
    if (why.code() == Code::kTimeout && may_go_otherwise) {
      room_.routes().end(*this, {"that worker has not tried it in time", true});
    } else {
      room_.routes().end_without_verdict(*this, why);
    }
  }
  // Whoever waits goes on. Absent: there is a verdict.
  void complete_with(std::optional<Error> failure) {
    if (lending) room_.exports().taken(*std::exchange(lending, std::nullopt));
    complete([&] { failure_ = std::move(failure); });
  }
  // When it is ready.
  const std::optional<Error>& failure() const noexcept { return failure_; }

  const Key key;
  const Deadline deadline;  // of who began it
  const Which which;
  std::optional<uint64_t> lending;  // Export::id, until it has ended

 private:
  // The other worker's device may be at it still.
  void leave() noexcept {
    if (lending) room_.recalls().keep(std::get<0>(key), *std::exchange(lending, std::nullopt));
  }

  const std::shared_ptr<Worker> worker_;
  DeviceRoom& room_;
  std::optional<Error> failure_;
};

std::shared_ptr<DeviceRoutes::Trial> DeviceRoutes::new_trial_locked(const Key& key,
                                                                    Deadline deadline,
                                                                    Which which) {
  Found& found = found_[key];
  if (found.trial || found.known_until > Clock::now()) return nullptr;
  return found.trial = std::make_shared<Trial>(room_, key, deadline, which);
}

bool DeviceRoutes::is_direct(int peer, int here, int there, Deadline deadline) {
  const Key key{peer, here, there};
  for (;;) {
    std::shared_ptr<Trial> mine, trial;
    std::string why;
    {
      MutexLock lock(mutex_);
      mine = new_trial_locked(key, deadline);
      const Found& found = found_[key];
      trial = found.trial;
      why = found.why_not_direct;
    }
    if (!trial) {
      if (!why.empty()) refuse_if_required(peer, here, there, why);
      return why.empty();
    }
    if (mine) begin(mine, true);
    if (!room_.worker().messenger().wait(*trial, mine ? Deadline::never() : deadline, peer)) {
      throw Error(Code::kTimeout, "its devices were still being tried").operation("send a tensor");
    }
    if (mine && mine->failure()) throw Error(*mine->failure());
  }
}

void DeviceRoutes::try_early(int peer, int here, int there, Which which) {
  // As long as a call that needs it would wait.
  const Deadline deadline =
      is_required() ? Deadline::in(room_.worker().rpc_timeout()) : Deadline::never();
  std::shared_ptr<Trial> trial;
  {
    MutexLock lock(mutex_);
    trial = new_trial_locked({peer, here, there}, deadline, which);
  }
  if (trial) begin(trial, false);
}

// Ends it, or has it end when that worker has answered.
void DeviceRoutes::begin(const std::shared_ptr<Trial>& trial, bool will_wait) {
  const int peer = std::get<0>(trial->key);
  try {
    if (device_to_device_ == DeviceToDevice::kForbidden) {
      end(*trial, {kNotAllowedHere});
    } else if (room_.reach(peer) == DeviceRoom::Reach::kByHost) {
      end(*trial, {room_.why_not_by_name(peer)});
    } else {
      ask(trial, will_wait);
    }
  } catch (const c10::Error& error) {
    end(*trial, {error.what_without_backtrace()});
  } catch (...) {
    end_without_verdict(*trial, to_error(std::current_exception()));
  }
}

void DeviceRoutes::end(Trial& trial, const Verdict& verdict) {
  // Whatever it is, it may be otherwise when there is a tensor; and there may never be one.
  const bool is_bad = !verdict.why_not_direct.empty();
  if (is_bad && trial.which == Which::kInUse) return end_without_verdict(trial, std::nullopt);
  const auto& [peer, here, there] = trial.key;
  bool is_news = false;
  {
    MutexLock lock(mutex_);
    Found& found = found_[trial.key];
    found.trial = nullptr;
    is_news = found.known_until == TimePoint() || found.why_not_direct != verdict.why_not_direct;
    found.why_not_direct = verdict.why_not_direct;
    found.known_until = verdict.is_passing ? Clock::now() + kAgainAfter : TimePoint::max();
  }
  try {
    if (is_news) tell(peer, here, there, verdict.why_not_direct, kLetThemOpen);
  } catch (const std::exception&) {  // whoever keeps the log
  }
  trial.complete_with(std::nullopt);
}

void DeviceRoutes::end_without_verdict(Trial& trial, std::optional<Error> why) {
  {
    MutexLock lock(mutex_);
    found_[trial.key].trial = nullptr;
  }
  trial.complete_with(std::move(why));
}

Buffer DeviceRoutes::fetch_unopened(int peer, const device::Export& lent, int here,
                                    const Error& why, Deadline deadline,
                                    const std::optional<Future<void>>& over) {
  agent::Messenger& messenger = room_.worker().messenger();
  MetaBuilder builder;
  auto out = builder.init_root<schema::DeviceUnopened>();
  out.setHere(static_cast<int16_t>(lent.device));
  out.setThere(static_cast<int16_t>(here));
  out.setWhy(why.message());
  if (!is_required()) write_export(lent, out.initLent());
  wire::OutFrame frame = request_of(wire::Kind::kDeviceUnopened, builder);
  if (is_required()) {
    messenger.post(peer, frame);
    throw Error(why);
  }
  const auto answer = std::make_shared<Answer>();
  messenger.call(peer, frame, deadline, answer, true);
  if (over) {
    over->on_ready([weak = std::weak_ptr(answer), &messenger, peer] {
      if (const auto unwanted = weak.lock()) messenger.cancel(peer, *unwanted);
    });
  }
  messenger.wait(*answer->frame().state(), Deadline::never(), peer);  // it ends by the deadline
  const Answer::Frame reply = answer->frame().value();
  if (reply->failed()) {
    const Error error = wire::decode_error(reply->meta.span());
    throw Error(error.code(), error.message() + "; it was asked for, since " + why.message())
        .operation(error.operation())
        .advice(error.advice());
  }
  if (reply->segments.size() != 1 || reply->segments[0].size() != lent.bytes) {
    throw Error(Code::kCorrupt, "an answer without the bytes that were lent");
  }
  const Buffer& bytes = reply->segments[0];
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
    if (room_.device_here(lent->device).is_cpu()) {
      throw Error(Code::kCorrupt, "no device lends that");
    }
    give_lent(std::move(request), *lent);
  } catch (const Error& error) {
    request.fail(error);
  }
}

void DeviceRoutes::give_lent(agent::Request request, const device::Export& lent) {
  run_with(room_, std::move(request), [lent](DeviceRoom& room, agent::Request& asked) {
    const auto copy = LentCopy::make(room, lent);
    asked.reply({}, {copy->bytes_for(asked)});
  });
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
  tell(peer, here, there, why, kLetThemOpen);
}

void DeviceRoutes::refuse_if_required(int peer, int here, int there, const std::string& why) const {
  if (!is_required()) return;
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
  if (is_first) tell(peer, here, there, why, "");
}

// A number in the device's memory goes the way of a tensor.
void DeviceRoutes::ask(const std::shared_ptr<Trial>& trial, bool will_wait) {
  const auto& [peer, here, there] = trial->key;
  MetaBuilder builder;
  auto probe = builder.init_root<schema::DeviceProbe>();
  probe.setThere(static_cast<int16_t>(there));
  probe.setIfInUse(trial->which == Which::kInUse);
  if (room_.reach(peer) == DeviceRoom::Reach::kByName) {
    try {
      const uint64_t id = room_.next_export();
      const auto spot = Spot::make(room_, here);
      probe.setNumber(spot->number() = random_number());
      spot->write();
      const auto made =
          room_.exports().make(id, spot->memory(), Spot::kBytes, spot->stream(), spot);
      if (!made) {
        return end(*trial, {"too much is staged of memory that others cannot open", true});
      }
      trial->lending = id;
      write_export(*made, probe.initFrom());
    } catch (const Error& error) {
      return end(*trial, {error.message(), is_passing(error)});
    }
  }
  // Who may go another way does not wait for as long as his call may take.
  const bool must = is_required() && trial->which == Which::kAny;
  const Deadline limit = must ? Deadline::never() : Deadline::after(kAnswerWithin);
  wire::OutFrame frame = request_of(wire::Kind::kDeviceProbe, builder);
  room_.worker().messenger().call(peer, frame, earlier(trial->deadline, limit), trial, will_wait);
}

void DeviceRoutes::serve_probe(agent::Request request) {
  run_with(room_, std::move(request),
           [](DeviceRoom& room, agent::Request& asked) { room.routes().answer_probe(asked); });
}

void DeviceRoutes::answer_probe(agent::Request& request) {
  if (device_to_device_ == DeviceToDevice::kForbidden) {
    throw Error(Code::kUnavailable, kNotAllowedThere);
  }
  const Probe probe = Probe::of(request.frame());
  if (room_.device_here(probe.there).is_cpu()) {
    throw Error(Code::kCorrupt, "a probe of something else than a device");
  }
  const bool is_wanted = !probe.if_in_use || room_.is_in_use(probe.there);
  if (is_wanted && probe.from) copy_and_look(request.from(), probe, request.deadline());
  MetaBuilder answer;
  answer.init_root<schema::DeviceProbed>().setIsNotInUse(!is_wanted);
  request.reply(answer.finish());
}

void DeviceRoutes::copy_and_look(int peer, const Probe& probe, Deadline deadline) {
  if (probe.from->bytes != Spot::kBytes) {
    throw Error(Code::kCorrupt, "a probe of something else than a number");
  }
  const auto spot = Spot::make(room_, probe.there);
  const auto use = room_.uses().begin(peer, probe.from->id);
  room_.import(peer, *probe.from, spot->memory(), spot->stream());
  room_.devices().then(spot->stream(), [use] {});
  spot->read();
  if (!room_.devices().synchronize(spot->stream(), deadline)) {
    throw Error(Code::kTimeout, "the device was busy");
  }
  if (spot->number() != probe.number) {
    throw Error(Code::kUnavailable,
                "what " + text_of(probe.there) + " reads there is something else");
  }
}

// What both workers allow, and goes a way that is many times slower, is seen where nothing else was
// asked for.
void DeviceRoutes::tell(int peer, int here, int there, const std::string& why,
                        const char* advice) const {
  const bool is_near = room_.reach(peer) != DeviceRoom::Reach::kByHost;
  const bool is_fall = !why.empty() && is_near && why != kNotAllowedHere && why != kNotAllowedThere;
  const LogLevel level =
      is_fall || (is_required() && !why.empty()) ? LogLevel::kWarning : LogLevel::kInfo;
  const std::string to =
      text_of(there) + " of worker '" + room_.worker().messenger().worker_name(peer) + "'";
  log(level, "device",
      "tensors go from " + text_of(here) + " to " + to +
          (why.empty() ? ", from device to device" : " through the processor's memory: " + why) +
          (is_fall ? advice : ""));
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
