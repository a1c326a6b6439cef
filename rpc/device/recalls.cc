#include <farspan/rpc/device/recalls.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

using std::chrono::milliseconds;
using Lendings = std::vector<uint64_t>;

// Who does not answer has mostly been killed, and ends soon.
constexpr milliseconds kFirstPause{20}, kLastPause{1000};
constexpr std::chrono::seconds kAnswerWithin{1};

}  // namespace

class Recalls::Answer final : public agent::ReplyHandler {
 public:
  Answer(std::weak_ptr<DeviceRoom> room, int peer, Lendings lendings)
      : room_(std::move(room)), peer_(peer), lendings_(std::move(lendings)) {}

  void on_reply(wire::InFrame&& reply) noexcept override {
    Lendings in_use;
    try {
      if (reply.failed()) return end(lendings_);
      guard_read([&] {
        MetaReader reader(reply.meta.span());
        in_use = read_lendings(reader.root<schema::DeviceRecalled>().getInUse());
      });
      end(in_use);
    } catch (const std::exception&) {  // that says nothing
      end(lendings_);
    }
  }
  void on_error(const Error&) noexcept override { end(lendings_); }

 private:
  void end(const Lendings& in_use) noexcept {
    if (const auto room = room_.lock()) room->recalls().end_asking(peer_, lendings_, in_use);
  }

  const std::weak_ptr<DeviceRoom> room_;
  const int peer_;
  const Lendings lendings_;
};

void Recalls::keep(int peer, uint64_t lending) noexcept {
  try {
    {
      MutexLock lock(mutex_);
      lent_[peer].lendings.insert(lending);
      pause_ = kFirstPause;
    }
    look_at(room_.worker().messenger().now());
  } catch (const std::exception&) {  // no memory: it stays until the worker ends
  }
}

void Recalls::has_left(int peer) noexcept {
  try {
    const TimePoint now = room_.worker().messenger().now();
    MutexLock lock(mutex_);
    left_at_.emplace(peer, now);
  } catch (const std::exception&) {  // then it is asked, and does not answer
  }
}

// In a task: it reads files.
void Recalls::look_at(TimePoint at) {
  agent::Messenger& messenger = room_.worker().messenger();
  MutexLock lock(mutex_);
  if (timer_ != 0 && next_look_ <= at) return;
  if (timer_ != 0 && !messenger.cancel(timer_)) return;  // it is about to look
  timer_ = 0;
  next_look_ = at;
  timer_ = messenger.call_at(at, [weak = room_.weak_from_this()] {
    const auto room = weak.lock();
    if (!room) return;
    {
      MutexLock look(room->recalls().mutex_);
      room->recalls().timer_ = 0;
    }
    room->worker().messenger().run([weak] {
      const auto live = weak.lock();
      if (!live) return;
      try {
        live->recalls().look();
      } catch (const std::bad_alloc&) {
        live->recalls().look_at(live->worker().messenger().now() + kLastPause);
      }
    });
  });
}

bool Recalls::is_over(int peer, TimePoint now) const {
  const auto left = left_at_.find(peer);
  if (left != left_at_.end() && now >= left->second + kAfterGoodbye) return true;
  return room_.has_ended(peer);
}

void Recalls::look() {
  const TimePoint now = room_.worker().messenger().now();
  std::vector<std::pair<int, Lendings>> over, to_ask;
  std::vector<int> to_speak_of;
  milliseconds pause{0};
  {
    MutexLock lock(mutex_);
    pause = pause_;
    pause_ = std::min(2 * pause_, kLastPause);
    for (auto& [peer, lent] : lent_) {
      Lendings all(lent.lendings.begin(), lent.lendings.end());
      if (is_over(peer, now)) {
        over.emplace_back(peer, std::move(all));
      } else if (!left_at_.contains(peer) && !lent.is_asked) {
        to_ask.emplace_back(peer, std::move(all));
        if (pause < kLastPause || std::exchange(lent.is_spoken_of, true)) continue;
        to_speak_of.push_back(peer);
      }
    }
  }
  for (const int peer : to_speak_of) {
    log(LogLevel::kWarning, "device",
        "memory that was lent to worker '" + room_.worker().messenger().worker_name(peer) +
            "' is kept until it says that its devices have copied it, or its process ends: the "
            "line has ended meanwhile");
  }
  for (const auto& [peer, lendings] : over) take(peer, lendings);
  for (const auto& [peer, lendings] : to_ask) ask(peer, lendings);
  {
    MutexLock lock(mutex_);
    if (lent_.empty()) return;
  }
  look_at(now + pause);
}

void Recalls::ask(int peer, const Lendings& lendings) {
  {
    MutexLock lock(mutex_);
    const auto found = lent_.find(peer);
    if (found == lent_.end() || std::exchange(found->second.is_asked, true)) return;
  }
  try {
    MetaBuilder builder;
    auto asked = builder.init_root<schema::DeviceRecall>();
    write_lendings(lendings, asked.initLendings(static_cast<unsigned>(lendings.size())));
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kDeviceRecall;
    frame.meta = builder.finish();
    room_.worker().messenger().call(
        peer, frame, Deadline::after(kAnswerWithin),
        std::make_shared<Answer>(room_.weak_from_this(), peer, lendings), false);
  } catch (const std::exception&) {  // no memory, or no descriptors: later
    end_asking(peer, lendings, lendings);
  }
}

void Recalls::end_asking(int peer, const Lendings& asked, const Lendings& in_use) noexcept {
  {
    MutexLock lock(mutex_);
    const auto found = lent_.find(peer);
    if (found != lent_.end()) found->second.is_asked = false;
  }
  if (in_use.size() == asked.size()) return;
  try {
    const std::set<uint64_t> kept(in_use.begin(), in_use.end());
    Lendings free;
    std::ranges::copy_if(asked, std::back_inserter(free),
                         [&](uint64_t one) { return !kept.contains(one); });
    take(peer, free);
  } catch (const std::bad_alloc&) {  // it is asked again
  }
}

void Recalls::take(int peer, const Lendings& lendings) noexcept {
  {
    MutexLock lock(mutex_);
    const auto found = lent_.find(peer);
    if (found == lent_.end()) return;
    for (const uint64_t lending : lendings) found->second.lendings.erase(lending);
    if (found->second.lendings.empty()) lent_.erase(found);
  }
  for (const uint64_t lending : lendings) room_.exports().taken(lending);
}

}  // namespace farspan
