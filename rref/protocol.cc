#include <farspan/rref/protocol.h>

#include <utility>

namespace farspan::rref {

RRefProtocol::RRefProtocol(ProtocolOptions options) : options_(std::move(options)) {
  peer(options_.self).standing = Peer::Standing::kLive;
  current_[options_.self.rank] = options_.self;
}

RRefProtocol::~RRefProtocol() = default;

void RRefProtocol::on_timer(TimePoint now) {
  now_ = now;
  while (const std::optional<Timer> timer = timers_.take_due(now)) {
    Peer& about = peer(timer->run);
    switch (timer->kind) {
      case Timer::Kind::kRetry:
        about.retry = {};
        about.link.repeat();
        about.retry_delay = std::min<Clock::duration>(about.retry_delay * 2, options_.last_retry);
        mark_dirty(about);
        break;
      case Timer::Kind::kProbe:
        about.probe_due = true;
        about.probe_delay = std::min<Clock::duration>(about.probe_delay * 2, options_.last_retry);
        about.probe = timers_.set(now + about.probe_delay, *timer);
        mark_dirty(about);
        break;
      case Timer::Kind::kLease:
        die(about, now);
        about.notice_delay = options_.lease;
        give_notice(about, now);
        break;
      case Timer::Kind::kNotice:
        give_notice(about, now);
        break;
      case Timer::Kind::kReclaim:
        reclaim(about);
        break;
      case Timer::Kind::kSettle:
        if (const auto child = about.children.find(timer->fork); child != about.children.end()) {
          recall(about, timer->fork, child->second);
        }
        break;
      case Timer::Kind::kForget:
        about.taken_back.erase(timer->fork);
        break;
      case Timer::Kind::kWait:
        wait_expired(timer->wait);
        break;
      case Timer::Kind::kDrain:
        close(now);
        break;
    }
  }
}

void RRefProtocol::mark_dirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(&peer);
}

// Everything for one worker since the last take() goes into one frame, with what is to be
// acknowledged to it.
Outbox RRefProtocol::take() {
  for (Peer* to : std::exchange(dirty_, {})) {
    to->dirty = false;
    ControlFrame frame;
    frame.from = options_.self;
    frame.to = to->run;
    const bool fence = std::exchange(to->fence_due, false);
    const bool probe = std::exchange(to->probe_due, false);
    if (to->standing == Peer::Standing::kDead || closed_) {
      frame.fence = true;
      frame.probe = probe;
      if (fence) out_.frames.push_back(frame);
    } else if (to->standing == Peer::Standing::kLost) {
      frame.probe = true;
      if (probe) out_.frames.push_back(frame);
    } else {
      while (to->link.fill(frame)) out_.frames.push_back(frame);
      if (to->link.under_way() && to->retry.second == 0) {
        to->retry = timers_.set(now_ + to->retry_delay, {Timer::Kind::kRetry, to->run});
      }
    }
  }
  // Only now, so that the last ones to tell us something learn that we heard it.
  if (draining_ && !closed_ && quiet()) close(now_);
  out_.wake_at = timers_.next();
  return std::exchange(out_, {});
}

Counters RRefProtocol::counters() const {
  Counters c;
  c.owned = owned_.size();
  c.unborn = unborn_;
  c.users = users_.size();
  c.pending_users = pending_users_;
  c.waits = waits_.size();
  c.rejected_frames = rejected_frames_;
  c.timers = timers_.size();
  for (const auto& [run, peer] : peers_) {
    c.forks += peer->held.size();
    c.pending_children += peer->children.size();
    c.unacknowledged += peer->link.unacknowledged();
    c.taken_back += peer->taken_back.size();
  }
  return c;
}

RRefProtocol::Value RRefProtocol::value(const RRefId& id) const {
  const auto it = owned_.find(id);
  if (it == owned_.end()) return Value::kNone;
  switch (it->second.state) {
    case OwnerRecord::State::kUnborn:
      return Value::kUnborn;
    case OwnerRecord::State::kPending:
      return Value::kPending;
    case OwnerRecord::State::kReady:
      return Value::kReady;
    case OwnerRecord::State::kFailed:
      break;
  }
  return Value::kFailed;
}

}  // namespace farspan::rref
