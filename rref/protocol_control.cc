// Control frames: what is done at their arrival, and what their acknowledgement means.
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

// Returns the item's number on the link; 0 when nobody is there to be told.
uint64_t RRefProtocol::push(Peer& peer, ControlKind kind, const RRefId& rref, const ForkId& fork) {
  FARSPAN_ASSERT(peer.run != options_.self, "a worker needs no frames to itself");
  if (peer.standing == Peer::Standing::kDead) return 0;
  mark_dirty(peer);
  return peer.link.push({kind, rref, fork});
}

void RRefProtocol::on_control(const ControlFrame& frame, TimePoint now) {
  now_ = now;
  if (frame.to != options_.self || frame.from == options_.self || superseded(frame.from)) {
    ++rejected_frames_;
    return;
  }
  if (closed_ && !frame.fence && (frame.probe || !frame.items.empty())) {
    peer(frame.from).fence_due = true;
    mark_dirty(peer(frame.from));
  }
  if (closed_) return;
  if (frame.fence) return on_fence(frame, now);
  Peer* from = hear_from(frame.from, now);
  if (!from) return;
  if (!from->link.valid(frame)) {
    ++rejected_frames_;
    return;
  }
  if (frame.probe) {
    from->link.answer();
    mark_dirty(*from);
  }
  const std::vector<Link::Settled> done = from->link.acknowledged(frame);
  if (!done.empty()) {
    timers_.cancel(from->retry);
    from->retry_delay = options_.first_retry;
    mark_dirty(*from);
  }
  for (const Link::Settled& one : done) settled(*from, one, std::nullopt);
  from->link.receive(frame, [&](const ControlItem& item) { return process(*from, item, now); });
  if (!frame.items.empty()) mark_dirty(*from);
}

// The other side holds this run for dead. Then it is the same the other way round, in both roles of
// both: what they shared is gone, and nothing of it can come back.
void RRefProtocol::on_fence(const ControlFrame& frame, TimePoint now) {
  Peer& from = peer(frame.from);
  die(from, now);
  timers_.cancel(from.notice);
  if (!frame.probe) return;
  from.fence_due = true;
  mark_dirty(from);
}

std::optional<Refusal> RRefProtocol::process(Peer& from, const ControlItem& item, TimePoint now) {
  switch (item.kind) {
    case ControlKind::kForkRequest:
      return process_fork_request(from, item);
    case ControlKind::kChildAccept:
      child_gone(from, item.fork, /*accepted=*/true);
      return std::nullopt;
    case ControlKind::kUserDelete:
      child_gone(from, item.fork, /*accepted=*/true);
      let_go(from, item.fork);
      return std::nullopt;
    case ControlKind::kCreatorDelete:
      process_creator_delete(from, item);
      return std::nullopt;
    case ControlKind::kRecall:
      return process_recall(from, item, now);
  }
  return Refusal::kNotUnderstood;
}

std::optional<Refusal> RRefProtocol::process_fork_request(Peer& from, const ControlItem& item) {
  if (item.rref.owner != options_.self) return Refusal::kNotOwner;
  OwnerRecord* record = find_or_expect(item.rref, texts_.keep(""));
  if (!record) return Refusal::kReleased;
  hold(from, item.fork, *record);
  child_gone(from, item.fork, /*accepted=*/true);  // when it was passed on by the owner itself
  return std::nullopt;
}

// After it no request to create this value can do anything any more, however late it comes.
void RRefProtocol::process_creator_delete(Peer& from, const ControlItem& item) {
  if (item.rref.creator != from.run || item.rref.owner != options_.self) return;
  from.created.insert(item.rref.serial);
  let_go(from, item.fork);
  if (OwnerRecord* record = find_owned(item.rref)) {
    never_born(*record, Error(Code::kCancelled, "its creator gave it up before it was made")
                            .worker(from.name)
                            .operation("creation of " + label(item.rref, *record->what)));
  }
}

// Either the fork is in use here, and its parent will hear so; or it is not, and never will be.
std::optional<Refusal> RRefProtocol::process_recall(Peer& from, const ControlItem& item,
                                                    TimePoint now) {
  if (item.fork.parent != from.run) return std::nullopt;
  if (users_.contains(item.fork)) return Refusal::kHeld;
  const Clock::duration memory = options_.lease + options_.fork_timeout;
  const auto [it, fresh] = from.taken_back.try_emplace(item.fork);
  if (fresh) it->second = timers_.set(now + memory, {Timer::Kind::kForget, from.run, item.fork});
  return std::nullopt;
}

// `peer` has processed an item; or, with `dead`, it never will.
void RRefProtocol::settled(Peer& peer, const Link::Settled& done, std::optional<Error> dead) {
  if (done.item.kind == ControlKind::kForkRequest) return asked(done, std::move(dead));
  if (done.item.kind != ControlKind::kRecall || dead) return;
  const auto child = peer.children.find(done.item.fork);
  if (child == peer.children.end()) return;
  if (done.refusal == Refusal::kHeld) {
    child->second.stage = Child::Stage::kHeld;
  } else {
    child_gone(peer, done.item.fork, /*accepted=*/false);
  }
}

// The owner counts a fork of ours, or says why not. Its parent is free in both cases.
void RRefProtocol::asked(const Link::Settled& done, std::optional<Error> dead) {
  const ControlItem& item = done.item;
  if (item.fork.parent != item.rref.owner) {
    push(peer(item.fork.parent), ControlKind::kChildAccept, item.rref, item.fork);
  }
  UserRecord* user = find_user({item.rref, item.fork});
  // A fork whose handle was dropped may have come again: then this answer is not for it.
  if (!user || user->request != done.sequence) return;
  if (!dead && !done.refusal) {
    if (user->state != UserRecord::State::kAsking) return;
    set_state(*user, UserRecord::State::kConfirmed);
    return answer(user->waits, std::nullopt);
  }
  user->deleted = true;  // nobody counts it
  fail(*user,
       dead ? *dead : refused(item.rref, *user->what, name_of(item.rref.owner), *done.refusal));
  settle_user(*user);
}

}  // namespace farspan::rref
