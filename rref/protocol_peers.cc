// Who is there, who is out of reach, and what a death means. PROTOCOL.md, "Losing a worker".
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

using Standing = Peer::Standing;

Peer& RRefProtocol::peer(WorkerRun run) {
  std::unique_ptr<Peer>& slot = peers_[run];
  if (!slot) {
    slot = std::make_unique<Peer>(run, options_.window);
    slot->retry_delay = options_.first_retry;
  }
  return *slot;
}

const Peer* RRefProtocol::find_peer(WorkerRun run) const {
  const auto it = peers_.find(run);
  return it == peers_.end() ? nullptr : it->second.get();
}

const std::string& RRefProtocol::name_of(WorkerRun run) const {
  static const std::string kUnknown = "unknown";
  const Peer* known = find_peer(run);
  return known ? known->name : kUnknown;
}

// A rank has one run at a time: the one that joined last. Others that nobody announced are earlier.
bool RRefProtocol::superseded(WorkerRun run) const {
  const auto it = current_.find(run.rank);
  if (it == current_.end() || it->second == run) return false;
  const Peer* known = find_peer(run);
  return !known || known->standing == Standing::kHeardOf;
}

Peer* RRefProtocol::hear_from(WorkerRun run, TimePoint now) {
  now_ = now;
  if (superseded(run)) return nullptr;
  Peer& from = peer(run);
  switch (from.standing) {
    case Standing::kDead:
      from.fence_due = true;
      mark_dirty(from);
      return nullptr;
    case Standing::kHeardOf:
      from.standing = Standing::kLive;
      break;
    case Standing::kLost:
      revive(from);
      break;
    case Standing::kLive:
      break;
  }
  current_.try_emplace(run.rank, run);
  return &from;
}

void RRefProtocol::on_peer_joined(WorkerRun run, std::string name, TimePoint now) {
  now_ = now;
  if (closed_ || run == options_.self) return;
  Peer& joined = peer(run);
  if (!name.empty()) joined.name = std::move(name);
  if (joined.standing == Standing::kDead) return;
  current_[run.rank] = run;
  std::vector<Peer*> earlier;
  for (const auto& [other, known] : peers_) {
    if (other.rank == run.rank && other != run) earlier.push_back(known.get());
  }
  for (Peer* old : earlier) {
    die(*old, now);
    timers_.cancel(old->notice);
  }
  if (joined.standing == Standing::kLost) revive(joined);
  joined.standing = Standing::kLive;
}

void RRefProtocol::on_peer_lost(WorkerRun run, Loss loss, TimePoint now) {
  now_ = now;
  if (closed_ || run == options_.self) return;
  Peer& lost = peer(run);
  if (loss == Loss::kEnded || draining_) {
    die(lost, now);
    timers_.cancel(lost.notice);
  } else if (!lost.gone()) {
    lose(lost, now);
  }
}

void RRefProtocol::revive(Peer& peer) {
  peer.standing = Standing::kLive;
  timers_.cancel(peer.lease);
  timers_.cancel(peer.probe);
  peer.probe_due = false;
  peer.retry_delay = options_.first_retry;
  peer.link.repeat();
  // What was heard may be the last of it, and late: whom nothing can be sent to is lost again.
  peer.link.answer();
  mark_dirty(peer);
}

// Out of reach: nothing is sent but a question now and then, and nothing waits for it any more.
// What it holds here stays until its lease ends.
void RRefProtocol::lose(Peer& peer, TimePoint now) {
  peer.standing = Standing::kLost;
  timers_.cancel(peer.retry);
  peer.lease = timers_.set(now + options_.lease, {Timer::Kind::kLease, peer.run});
  peer.probe_delay = options_.first_retry;
  peer.probe = timers_.set(now + peer.probe_delay, {Timer::Kind::kProbe, peer.run});
  // Waits for its confirmation: every one is for an item that it has not acknowledged.
  for (const Link::Settled& open : peer.link.unsettled()) {
    if (open.item.kind != ControlKind::kForkRequest) continue;
    UserRecord* user = find_user({open.item.rref, open.item.fork});
    if (!user) continue;
    answer(user->waits, owner_gone(open.item.rref, *user->what, peer.name, false));
  }
  cancel_parked(peer, peer_gone(peer.name, false, "wait for a value"));
}

void RRefProtocol::cancel_parked(Peer& peer, const Error& why) {
  const std::vector<WaitId> parked(peer.parked.begin(), peer.parked.end());
  for (const WaitId id : parked) leave_value(finish_wait(id, why));
}

// For good. Nothing is sent to this run, and nothing from it is accepted, ever again.
void RRefProtocol::die(Peer& peer, TimePoint now) {
  if (peer.standing == Standing::kDead) return;
  peer.standing = Standing::kDead;
  for (Timers::Key* key : {&peer.retry, &peer.probe, &peer.lease}) timers_.cancel(*key);
  peer.probe_due = false;

  // Its own half of every exchange is as good as done.
  for (const Link::Settled& open : peer.link.clear()) {
    settled(peer, open, owner_gone(open.item.rref, "", peer.name, true));
  }
  std::vector<ForkId> children;
  for (const auto& [fork, child] : peer.children) children.push_back(fork);
  for (const ForkId& fork : children) child_gone(peer, fork, /*accepted=*/false);
  for (auto& [fork, key] : peer.taken_back) timers_.cancel(key);
  peer.taken_back.clear();
  cancel_parked(peer, peer_gone(peer.name, true, "wait for a value"));
  for (const RRefId& id : std::exchange(peer.unborn, {})) {
    if (OwnerRecord* record = find_owned(id)) {
      never_born(*record, Error(Code::kDisconnected,
                                "its creator died before the request to make it arrived")
                              .worker(peer.name)
                              .operation("creation of " + label(id, *record->what)));
    }
  }

  // What it passed on may still be on its way: those who got it have this long to say so.
  if (draining_) {
    reclaim(peer);
  } else if (!peer.held.empty()) {
    peer.reclaim = timers_.set(now + options_.fork_timeout, {Timer::Kind::kReclaim, peer.run});
  }
}

// It may be alive, and may not have noticed that it was out of reach: what it keeps for us would
// stay for ever. So it is told, seldom, until it answers or has had more than a day to.
void RRefProtocol::give_notice(Peer& peer, TimePoint now) {
  constexpr int kNotices = 12;
  peer.fence_due = peer.probe_due = true;
  mark_dirty(peer);
  if (peer.notice_delay < options_.lease * (1 << kNotices)) {
    peer.notice = timers_.set(now + peer.notice_delay, {Timer::Kind::kNotice, peer.run});
  }
  peer.notice_delay *= 2;
}

void RRefProtocol::reclaim(Peer& peer) {
  timers_.cancel(peer.reclaim);
  std::vector<ForkId> forks;
  for (const auto& [fork, record] : peer.held) forks.push_back(fork);
  for (const ForkId& fork : forks) let_go(peer, fork);
}

}  // namespace farspan::rref
