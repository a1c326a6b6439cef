// Waiting: for owners to count handles, and for values. PROTOCOL.md, "Waiting".
#include <algorithm>
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

std::optional<Error> RRefProtocol::failure_of(const HandleId& handle) const {
  if (closed_) return shut_down("use of " + to_text(handle.rref));
  if (handle.at_owner()) {
    if (owned_.contains(handle.rref)) return std::nullopt;
    return released(handle.rref, "", "this worker");
  }
  const auto it = users_.find(handle.fork);
  if (it == users_.end() || it->second.id.rref != handle.rref) return handle_gone(handle.rref);
  const UserRecord& user = it->second;
  if (user.failure) return user.failure;
  const Peer* owner = find_peer(handle.rref.owner);
  if (owner && owner->gone()) {
    return owner_gone(handle.rref, *user.what, owner->name,
                      owner->standing == Peer::Standing::kDead);
  }
  return std::nullopt;
}

bool RRefProtocol::confirmed(const HandleId& handle) const {
  if (handle.at_owner()) return owned_.contains(handle.rref);
  const auto it = users_.find(handle.fork);
  return it != users_.end() && it->second.state == UserRecord::State::kConfirmed;
}

Wait& RRefProtocol::add_wait(WaitId id, Wait wait, Deadline deadline, TimePoint now) {
  wait.begun = now;
  if (!deadline.is_never()) {
    wait.timer = timers_.set(deadline.at(), {Timer::Kind::kWait, options_.self, {}, id});
  }
  return waits_.emplace(id, std::move(wait)).first->second;
}

WaitId RRefProtocol::wait_confirmed(std::span<const HandleId> handles, Deadline deadline,
                                    TimePoint now) {
  now_ = now;
  const WaitId id = ++last_wait_;
  Wait wait{Wait::Kind::kConfirmed, {}, options_.self};
  std::vector<UserRecord*> pending;
  bool asking = false;
  for (const HandleId& handle : handles) {
    if (std::optional<Error> failure = failure_of(handle)) {
      out_.results.push_back({id, std::move(failure)});
      return id;
    }
    if (confirmed(handle)) continue;
    UserRecord* user = find_user(handle);
    if (pending.empty()) wait.rref = handle.rref;
    pending.push_back(user);
    asking = asking || user->state == UserRecord::State::kAsking;
  }
  if (pending.empty()) {
    out_.results.push_back({id, std::nullopt});
    return id;
  }
  if (asking) deadline = earlier(deadline, Deadline(now + options_.confirm_timeout));
  wait.missing = pending.size();
  add_wait(id, std::move(wait), deadline, now);
  for (UserRecord* user : pending) park(user->waits, id);
  return id;
}

WaitId RRefProtocol::wait_value(WorkerRun requester, const RRefId& rref, Deadline deadline,
                                TimePoint now) {
  now_ = now;
  const WaitId id = ++last_wait_;
  const auto answer_now = [&](std::optional<Error> error) {
    out_.results.push_back({id, std::move(error)});
    return id;
  };
  if (closed_) return answer_now(shut_down("wait for the value of " + to_text(rref)));
  Peer* from = hear_from(requester, now);
  if (!from) return answer_now(peer_gone(name_of(requester), true, "wait for a value"));
  if (rref.owner != options_.self) {
    return answer_now(Error(Code::kNotOwner, to_text(rref) + " does not live here"));
  }
  OwnerRecord* record = find_or_expect(rref, texts_.keep(""));
  if (!record) return answer_now(released(rref, "", "this worker"));
  if (record->state == OwnerRecord::State::kReady) return answer_now(std::nullopt);
  if (record->state == OwnerRecord::State::kFailed) return answer_now(record->failure);
  add_wait(id, {Wait::Kind::kValue, rref, requester, 1}, deadline, now);
  from->parked.insert(id);
  park(record->waits, id);
  return id;
}

// Ids of waits that have ended stay in the list until it is about to grow.
void RRefProtocol::park(std::vector<WaitId>& waits, WaitId id) {
  if (waits.size() == waits.capacity()) {
    std::erase_if(waits, [this](WaitId old) { return !waits_.contains(old); });
  }
  waits.push_back(id);
}

void RRefProtocol::answer(std::vector<WaitId>& waits, const std::optional<Error>& error) {
  for (const WaitId id : std::exchange(waits, {})) {
    const auto it = waits_.find(id);
    if (it == waits_.end()) continue;
    if (error || --it->second.missing == 0) finish_wait(id, error);
  }
}

Wait RRefProtocol::end_wait(WaitId id) {
  const auto it = waits_.find(id);
  Wait wait = it->second;
  waits_.erase(it);
  timers_.cancel(wait.timer);
  if (wait.kind == Wait::Kind::kValue) peer(wait.requester).parked.erase(id);
  return wait;
}

Wait RRefProtocol::finish_wait(WaitId id, std::optional<Error> error) {
  Wait wait = end_wait(id);
  if (error && error->elapsed().count() < 0) error->elapsed(now_ - wait.begun);
  out_.results.push_back({id, std::move(error)});
  return wait;
}

// A wait has ended by itself: an unborn value that nothing else keeps is forgotten.
void RRefProtocol::leave_value(const Wait& wait) {
  if (wait.kind != Wait::Kind::kValue) return;
  OwnerRecord* record = find_owned(wait.rref);
  if (record && record->state == OwnerRecord::State::kUnborn) settle_owned(*record);
}

void RRefProtocol::wait_expired(WaitId id) {
  const Wait& wait = waits_.at(id);
  const bool value = wait.kind == Wait::Kind::kValue;
  Error error(Code::kTimeout, (value ? "the value of " + to_text(wait.rref) + " is not there yet"
                                     : "the owner has not confirmed " + to_text(wait.rref)));
  error.worker(name_of(wait.rref.owner))
      .operation(value ? "wait for a value" : "wait for the references among the arguments")
      .advice(value ? "give it more time, or look at what makes it"
                    : "look at whether its owner can be reached");
  leave_value(finish_wait(id, std::move(error)));
}

void RRefProtocol::cancel_wait(WaitId id, TimePoint now) {
  now_ = now;
  if (!waits_.contains(id)) return;
  leave_value(end_wait(id));
}

}  // namespace farspan::rref
