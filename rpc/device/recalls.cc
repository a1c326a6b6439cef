#include <farspan/rpc/device/recalls.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/worker.h>

namespace farspan {
namespace {

using std::chrono::milliseconds;

// Who does not answer has mostly been killed, and is gone soon.
constexpr milliseconds kFirstPause{20}, kLastPause{1000};
constexpr std::chrono::seconds kAnswerWithin{10};

}  // namespace

class Recalls::Answer final : public agent::ReplyHandler {
 public:
  Answer(std::weak_ptr<DeviceRoom> room, int peer, std::vector<uint64_t> lendings)
      : room_(std::move(room)), peer_(peer), lendings_(std::move(lendings)) {}

  void on_reply(wire::InFrame&& reply) noexcept override {
    end(reply.failed() ? std::span<const uint64_t>() : lendings_);
  }
  void on_error(const Error&) noexcept override { end({}); }

 private:
  void end(std::span<const uint64_t> free) noexcept {
    if (const auto room = room_.lock()) room->recalls().take(peer_, free);
  }

  const std::weak_ptr<DeviceRoom> room_;
  const int peer_;
  const std::vector<uint64_t> lendings_;
};

void Recalls::keep(int peer, uint64_t lending) noexcept {
  try {
    {
      MutexLock lock(mutex_);
      lent_[peer].lendings.insert(lending);
      pause_ = kFirstPause;
    }
    look_later(milliseconds(0));
  } catch (const std::exception&) {  // no memory: it stays until the worker ends
  }
}

// In a task: it reads files.
void Recalls::look_later(milliseconds after) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(will_look_, true)) return;
  }
  agent::Messenger& messenger = room_.worker().messenger();
  messenger.call_at(messenger.now() + after, [weak = room_.weak_from_this()] {
    const auto room = weak.lock();
    if (!room) return;
    room->worker().messenger().run([weak] {
      if (const auto live = weak.lock()) live->recalls().look();
    });
  });
}

void Recalls::look() {
  std::map<int, std::vector<uint64_t>> free, to_ask;
  std::vector<int> to_speak_of;
  milliseconds pause{0};
  {
    MutexLock lock(mutex_);
    will_look_ = false;
    for (auto& [peer, lent] : lent_) {
      const std::vector<uint64_t> all(lent.lendings.begin(), lent.lendings.end());
      if (!room_.is_running(peer)) {
        free.emplace(peer, all);
      } else if (!std::exchange(lent.is_asked, true)) {
        to_ask.emplace(peer, all);
        if (pause_ == kLastPause && !std::exchange(lent.is_spoken_of, true)) {
          to_speak_of.push_back(peer);
        }
      }
    }
    pause = pause_;
    pause_ = std::min(2 * pause_, kLastPause);
  }
  for (const int peer : to_speak_of) {
    log(LogLevel::kWarning, "device",
        "memory that was lent to worker '" + room_.worker().messenger().worker_name(peer) +
            "' is kept until it says that its devices have copied it, or its process ends: the "
            "line has ended, and it does not answer");
  }
  for (const auto& [peer, lendings] : free) take(peer, lendings);
  for (const auto& [peer, lendings] : to_ask) ask(peer, lendings);
  {
    MutexLock lock(mutex_);
    if (lent_.empty()) return;
  }
  look_later(pause);
}

void Recalls::ask(int peer, const std::vector<uint64_t>& lendings) {
  MetaBuilder builder;
  auto out = builder.init_root<schema::DeviceRecall>().initLendings(
      static_cast<unsigned>(lendings.size()));
  for (unsigned i = 0; i < out.size(); ++i) out.set(i, lendings[i]);
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kDeviceRecall;
  frame.meta = builder.finish();
  room_.worker().messenger().call(peer, frame, Deadline::after(kAnswerWithin),
                                  std::make_shared<Answer>(room_.weak_from_this(), peer, lendings),
                                  false);
}

void Recalls::take(int peer, std::span<const uint64_t> lendings) noexcept {
  {
    MutexLock lock(mutex_);
    const auto found = lent_.find(peer);
    if (found == lent_.end()) return;
    found->second.is_asked = false;
    for (const uint64_t lending : lendings) found->second.lendings.erase(lending);
    if (found->second.lendings.empty()) lent_.erase(found);
  }
  for (const uint64_t lending : lendings) room_.exports().taken(lending);
}

}  // namespace farspan
