// Making values, here and elsewhere. PROTOCOL.md, "Creation".
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

void RRefProtocol::check_open(const char* operation) const {
  if (draining_) throw shut_down(operation);
}

HandleId RRefProtocol::create_local(std::string_view what) {
  check_open("create_local");
  const RRefId id{options_.self, options_.self, ++peer(options_.self).creations};
  OwnerRecord record;
  record.id = id;
  record.state = OwnerRecord::State::kReady;
  record.born = true;
  record.local = 1;
  record.what = texts_.keep(what);
  owned_.emplace(id, std::move(record));
  return {id, {}};
}

HandleId RRefProtocol::create(WorkerRun owner, std::string_view what, TimePoint now) {
  now_ = now;
  check_open("remote");
  if (owner == options_.self) {
    const HandleId id = create_local(what);
    OwnerRecord& record = owned_.find(id.rref)->second;
    record.state = OwnerRecord::State::kPending;
    record.born = false;
    return id;
  }
  if (const Peer* known = find_peer(owner); superseded(owner) || (known && known->gone())) {
    throw peer_gone(name_of(owner), !known || known->standing == Peer::Standing::kDead, "remote");
  }
  UserRecord user;
  user.id.rref = {options_.self, owner, ++peer(owner).creations};
  user.id.fork = {options_.self, ++last_fork_};
  user.state = UserRecord::State::kCreating;
  user.creator = true;
  user.refs = 1;
  user.what = texts_.keep(what);
  const HandleId id = user.id;
  users_.emplace(id.fork, std::move(user));
  ++pending_users_;
  return id;
}

void RRefProtocol::creation_done(const HandleId& id, TimePoint now) {
  now_ = now;
  UserRecord* user = find_user(id);
  if (!user || user->state != UserRecord::State::kCreating) return;
  set_state(*user, UserRecord::State::kConfirmed);
  answer(user->waits, std::nullopt);
  settle_user(*user);
}

void RRefProtocol::creation_failed(const HandleId& id, const Error& why, TimePoint now) {
  now_ = now;
  if (id.at_owner()) {
    const OwnerRecord* record = find_owned(id.rref);
    // One whose function runs will be set by that.
    if (record && !record->born) value_set(id.rref, why, now);
    return;
  }
  UserRecord* user = find_user(id);
  if (!user || user->state != UserRecord::State::kCreating) return;
  fail(*user, why);
  settle_user(*user);
}

// What this worker asks of itself: the record is there already.
RRefProtocol::Creation RRefProtocol::on_own_creation(const HandleId& id) {
  OwnerRecord* record = find_owned(id.rref);
  if (!record || !id.at_owner() || record->state != OwnerRecord::State::kPending) {
    return Creation::kGone;
  }
  return std::exchange(record->born, true) ? Creation::kDuplicate : Creation::kRun;
}

RRefProtocol::Creation RRefProtocol::on_creation(WorkerRun from, const HandleId& id,
                                                 std::string_view what, TimePoint now) {
  Peer* creator = closed_ ? nullptr : hear_from(from, now);
  if (creator && from == options_.self) return on_own_creation(id);
  if (!creator || id.rref.creator != from || id.fork.parent != from ||
      id.rref.owner != options_.self || id.rref.serial == 0 || id.at_owner()) {
    return Creation::kRefused;
  }
  if (creator->created.contains(id.rref.serial)) {
    const OwnerRecord* record = find_owned(id.rref);
    return record && record->born ? Creation::kDuplicate : Creation::kGone;
  }
  if (draining_) return Creation::kRefused;
  OwnerRecord& record = *find_or_expect(id.rref, texts_.keep(what));
  creator->created.insert(id.rref.serial);
  creator->unborn.erase(id.rref);
  --unborn_;
  record.state = OwnerRecord::State::kPending;
  record.born = true;
  record.what = texts_.keep(what);
  hold(*creator, id.fork, record);
  return Creation::kRun;
}

void RRefProtocol::value_set(const RRefId& id, std::optional<Error> failure, TimePoint now) {
  now_ = now;
  OwnerRecord* record = find_owned(id);
  if (!record) {  // drain() gave up while it was being made
    out_.releases.push_back(id);
    return;
  }
  if (record->state != OwnerRecord::State::kPending) return;
  record->born = true;
  record->state = failure ? OwnerRecord::State::kFailed : OwnerRecord::State::kReady;
  record->failure = std::move(failure);
  answer(record->waits, record->failure);
  settle_owned(*record);
}

OwnerRecord* RRefProtocol::find_owned(const RRefId& id) {
  const auto it = owned_.find(id);
  return it == owned_.end() ? nullptr : &it->second;
}

// The record of a value that is here, or that may yet be asked for; null when it was released.
OwnerRecord* RRefProtocol::find_or_expect(const RRefId& id,
                                          std::shared_ptr<const std::string> what) {
  if (OwnerRecord* record = find_owned(id)) return record;
  if (id.serial == 0 || id.creator == options_.self || draining_ || superseded(id.creator)) {
    return nullptr;
  }
  Peer& creator = peer(id.creator);
  if (creator.standing == Peer::Standing::kDead || creator.created.contains(id.serial)) {
    return nullptr;
  }
  OwnerRecord record;
  record.id = id;
  record.what = std::move(what);
  creator.unborn.insert(id);
  ++unborn_;
  return &owned_.emplace(id, std::move(record)).first->second;
}

// The request to make it will not come any more.
void RRefProtocol::never_born(OwnerRecord& record, const Error& why) {
  if (record.state != OwnerRecord::State::kUnborn) return;
  peer(record.id.creator).unborn.erase(record.id);
  --unborn_;
  record.state = OwnerRecord::State::kFailed;
  record.failure = why;
  answer(record.waits, record.failure);
  settle_owned(record);
}

}  // namespace farspan::rref
