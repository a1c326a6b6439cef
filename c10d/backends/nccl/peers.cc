#include <farspan/c10d/backends/nccl/peers.h>

#include <utility>

namespace farspan::dist::nccl {
namespace {

constexpr int kWatchTag = -3;  // monitored barriers have those above

// Who leaves has done its part. What it calls differently, or too late, this rank hears at its own
// call, and those before go on.
bool is_loss(const Error& why) {
  const bool is_of_one_call = why.code() == Code::kShapeMismatch || why.code() == Code::kTimeout;
  return !is_of_one_call && !why.message().ends_with("has left the group");
}

}  // namespace

void Peers::watch() {
  {
    MutexLock lock(mutex_);
    if (watches_) return;
  }
  GroupSpec beside = spec_;
  beside.name += "/peers";
  const std::shared_ptr<Backend> channel = control_->subgroup(beside);
  {
    MutexLock lock(mutex_);
    if (std::exchange(watches_, true)) return;
    beside_ = channel;
  }
  for (int peer = 0; peer < spec_.size(); ++peer) {
    if (peer == spec_.rank) continue;
    wait_for_end(*control_, peer);
    wait_for_end(*channel, peer);
  }
}

void Peers::leave() noexcept {
  std::shared_ptr<Backend> channel;
  {
    MutexLock lock(mutex_);
    watches_ = true;  // nothing begins any more
    channel = std::move(beside_);
  }
  if (channel) channel->leave();
}

void Peers::wait_for_end(Backend& channel, int peer) {
  const auto place = std::make_shared<std::byte>();
  Message message;
  message.peer = peer;
  message.tag = kWatchTag;
  message.type = DType::UINT8;
  const Future<int> end = channel.recv(message, {place.get(), 1});
  end.on_ready([weak = weak_from_this(), end, place] {
    const auto self = weak.lock();
    if (self && end.has_error() && is_loss(end.error())) self->lose(end.error());
  });
}

void Peers::lose(const Error& why) {
  OnLost tell;
  {
    MutexLock lock(mutex_);
    if (lost_) return;
    lost_ = why;
    tell = tell_;
  }
  if (tell) tell(why);
}

std::optional<Error> Peers::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

void Peers::on_lost(OnLost tell) {
  std::optional<Error> lost;
  {
    MutexLock lock(mutex_);
    tell_ = tell;
    lost = lost_;
  }
  if (lost) tell(*lost);
}

}  // namespace farspan::dist::nccl
