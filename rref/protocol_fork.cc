// Passing references on, and letting them go. PROTOCOL.md, "Sharing".
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

ForkData RRefProtocol::fork(const HandleId& handle, WorkerRun to, TimePoint now) {
  now_ = now;
  check_open("passing a reference on");
  if (const Peer* known = find_peer(to); superseded(to) || (known && known->gone())) {
    throw peer_gone(name_of(to), !known || known->standing == Peer::Standing::kDead,
                    "passing " + to_text(handle.rref) + " to it");
  }
  if (const std::optional<Error> failure = failure_of(handle)) throw *failure;

  const ForkId fork{options_.self, ++last_fork_};
  Peer& receiver = peer(to);
  std::shared_ptr<const std::string> what;
  if (handle.at_owner()) {
    OwnerRecord& record = *find_owned(handle.rref);
    what = record.what;
    if (to == options_.self) {
      ++record.local;
    } else {
      hold(receiver, fork, record);
    }
  } else {
    UserRecord& user = *find_user(handle);
    what = user.what;
    ++user.children;
  }
  receiver.children.emplace(fork, Child{handle.rref, handle.fork});
  return {handle.rref, fork, *what};
}

void RRefProtocol::carrier_ended(WorkerRun to, std::span<const ForkId> forks, Carrier end,
                                 TimePoint now) {
  now_ = now;
  const auto receiver = peers_.find(to);
  if (receiver == peers_.end()) return;
  for (const ForkId& fork : forks) {
    const auto it = receiver->second->children.find(fork);
    if (it == receiver->second->children.end() || it->second.stage != Child::Stage::kCarried) {
      continue;
    }
    if (end == Carrier::kFailed) {
      recall(*receiver->second, fork, it->second);
    } else {
      it->second.stage = Child::Stage::kSettling;
      it->second.timer = timers_.set(now + options_.fork_timeout, {Timer::Kind::kSettle, to, fork});
    }
  }
}

// Asks the receiver: it answers that it has the fork, or that it will never take it.
void RRefProtocol::recall(Peer& to, const ForkId& fork, Child& child) {
  timers_.cancel(child.timer);
  child.stage = Child::Stage::kRecalled;
  if (to.run == options_.self) {
    child_gone(to, fork, /*accepted=*/false);
  } else {
    push(to, ControlKind::kRecall, child.rref, fork);
  }
}

// The fork needs nobody to stay for it any more: its receiver has seen to it, or never will.
bool RRefProtocol::child_gone(Peer& to, const ForkId& fork, bool accepted) {
  const auto it = to.children.find(fork);
  if (it == to.children.end()) return false;
  Child child = it->second;
  timers_.cancel(child.timer);
  to.children.erase(it);
  if (child.parent.serial != 0) {
    if (UserRecord* user = find_user({child.rref, child.parent})) {
      --user->children;
      settle_user(*user);
    }
  } else if (to.run == options_.self) {
    if (OwnerRecord* record = find_owned(child.rref)) {
      --record->local;
      settle_owned(*record);
    }
  } else if (!accepted && to.standing != Peer::Standing::kDead) {
    let_go(to, fork);
  }
  return true;
}

HandleId RRefProtocol::received_from_self(const ForkData& data) {
  Peer& self = peer(options_.self);
  const auto it = self.children.find(data.fork);
  if (it == self.children.end()) throw taken_back(data.rref, "this worker");
  const HandleId id{it->second.rref, it->second.parent};
  if (OwnerRecord* record = id.at_owner() ? find_owned(id.rref) : nullptr) ++record->local;
  if (UserRecord* user = id.at_owner() ? nullptr : find_user(id)) ++user->refs;
  child_gone(self, data.fork, /*accepted=*/true);
  return id;
}

HandleId RRefProtocol::received(WorkerRun from, const ForkData& data, TimePoint now) {
  now_ = now;
  if (draining_) {
    declined(from, data, now);
    throw shut_down("receiving a reference");
  }
  if (data.fork.parent != from || data.fork.serial == 0 || data.rref.serial == 0) {
    throw corrupt(name_of(from), "a reference that its sender did not make");
  }
  if (from == options_.self) return received_from_self(data);
  Peer* sender = hear_from(from, now);
  if (!sender) throw peer_gone(name_of(from), true, "receiving a reference");
  if (sender->taken_back.contains(data.fork)) throw taken_back(data.rref, sender->name);

  if (data.rref.owner == options_.self) {
    OwnerRecord* record = find_or_expect(data.rref, texts_.keep(data.what));
    accept_from(*sender, data.rref, data.fork);
    if (!record) throw released(data.rref, data.what, "this worker");
    ++record->local;
    return {data.rref, {}};
  }

  const HandleId id{data.rref, data.fork};
  if (const auto it = users_.find(data.fork); it != users_.end()) {  // it came twice
    if (it->second.id != id) throw corrupt(sender->name, "one fork for two references");
    ++it->second.refs;
    return id;
  }
  const Peer* known = find_peer(data.rref.owner);
  if (superseded(data.rref.owner) || (known && known->standing == Peer::Standing::kDead)) {
    accept_from(*sender, data.rref, data.fork);
    throw owner_gone(data.rref, data.what, name_of(data.rref.owner), true);
  }
  UserRecord user;
  user.id = id;
  user.refs = 1;
  user.what = texts_.keep(data.what);
  // What the owner itself has passed on, it counts already.
  user.state = from == data.rref.owner ? UserRecord::State::kConfirmed : UserRecord::State::kAsking;
  if (user.state == UserRecord::State::kAsking) ++pending_users_;
  user.request = push(peer(data.rref.owner), ControlKind::kForkRequest, id.rref, id.fork);
  users_.emplace(id.fork, std::move(user));
  return id;
}

void RRefProtocol::declined(WorkerRun from, const ForkData& data, TimePoint now) {
  now_ = now;
  if (closed_ || data.fork.parent != from || users_.contains(data.fork)) return;
  if (from == options_.self) {
    child_gone(peer(from), data.fork, /*accepted=*/false);
  } else if (Peer* sender = hear_from(from, now)) {
    accept_from(*sender, data.rref, data.fork);
  }
}

// Tells the sender of a fork that it need not stay alive for it. An owner counts a fork from the
// moment it makes it, so for one that is not taken it has to hear that it is gone.
void RRefProtocol::accept_from(Peer& from, const RRefId& rref, const ForkId& fork) {
  push(from, rref.owner == from.run ? ControlKind::kUserDelete : ControlKind::kChildAccept, rref,
       fork);
}

void RRefProtocol::drop(const HandleId& handle, TimePoint now) {
  now_ = now;
  if (handle.at_owner()) {
    OwnerRecord* record = find_owned(handle.rref);
    if (!record || record->local == 0) return;
    --record->local;
    settle_owned(*record);
  } else {
    UserRecord* user = find_user(handle);
    if (!user || user->refs == 0) return;
    --user->refs;
    settle_user(*user);
  }
}

UserRecord* RRefProtocol::find_user(const HandleId& handle) {
  const auto it = users_.find(handle.fork);
  return it == users_.end() || it->second.id.rref != handle.rref ? nullptr : &it->second;
}

void RRefProtocol::set_state(UserRecord& record, UserRecord::State state) {
  const auto pending = [](UserRecord::State s) {
    return s == UserRecord::State::kCreating || s == UserRecord::State::kAsking;
  };
  if (pending(record.state)) --pending_users_;
  if (pending(state)) ++pending_users_;
  record.state = state;
}

void RRefProtocol::fail(UserRecord& record, const Error& why) {
  set_state(record, UserRecord::State::kFailed);
  record.failure = why;
  answer(record.waits, record.failure);
}

// Tells the owner when this fork is done with, and forgets it. It is not while a child may still
// be on its way: the owner has to hear of the child first.
void RRefProtocol::settle_user(UserRecord& record) {
  if (record.children > 0) return;
  Peer& owner = peer(record.id.rref.owner);
  const bool unused = record.refs == 0 && record.state != UserRecord::State::kCreating;
  if (!record.deleted && (unused || record.state == UserRecord::State::kFailed)) {
    push(owner, record.creator ? ControlKind::kCreatorDelete : ControlKind::kUserDelete,
         record.id.rref, record.id.fork);
    record.deleted = true;
  }
  if (record.refs > 0 || !record.deleted) return;
  set_state(record, UserRecord::State::kFailed);
  answer(record.waits, handle_gone(record.id.rref));
  users_.erase(record.id.fork);
}

// ---- at the owner ----

void RRefProtocol::hold(Peer& holder, const ForkId& fork, OwnerRecord& record) {
  if (holder.held.try_emplace(fork, &record).second) ++record.forks;
}

void RRefProtocol::let_go(Peer& holder, const ForkId& fork) {
  const auto it = holder.held.find(fork);
  if (it == holder.held.end()) return;
  OwnerRecord& record = *it->second;
  holder.held.erase(it);
  --record.forks;
  settle_owned(record);
}

void RRefProtocol::settle_owned(OwnerRecord& record) {
  if (record.forks > 0 || record.local > 0) return;
  switch (record.state) {
    case OwnerRecord::State::kPending:
      return;  // its function runs; value_set() comes back here
    case OwnerRecord::State::kUnborn:
      std::erase_if(record.waits, [this](WaitId id) { return !waits_.contains(id); });
      if (!record.waits.empty()) return;
      peer(record.id.creator).unborn.erase(record.id);
      --unborn_;
      break;
    case OwnerRecord::State::kReady:
    case OwnerRecord::State::kFailed:
      break;
  }
  release(record);
}

void RRefProtocol::release(OwnerRecord& record) {
  if (record.born) out_.releases.push_back(record.id);
  owned_.erase(RRefId(record.id));
}

}  // namespace farspan::rref
