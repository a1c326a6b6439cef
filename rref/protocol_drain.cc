// The end: letting go of everything, and saying what could not be let go. PROTOCOL.md, "Shutdown".
#include <algorithm>
#include <map>
#include <utility>

#include <farspan/rref/protocol.h>
#include <farspan/rref/protocol_errors.h>

namespace farspan::rref {

void RRefProtocol::drain(Deadline deadline, TimePoint now) {
  now_ = now;
  if (closed_) return;
  if (!draining_) {
    draining_ = true;
    drain_begun_ = now;
    drop_everything(now);
  }
  timers_.cancel(drain_timer_);
  if (!deadline.is_never()) {
    drain_timer_ = timers_.set(deadline.at(), {Timer::Kind::kDrain, options_.self});
  }
}

void RRefProtocol::end(TimePoint now) {
  now_ = now;
  if (!std::exchange(draining_, true)) drain_begun_ = now;
  if (!closed_) close(now);
}

void RRefProtocol::drop_everything(TimePoint now) {
  std::vector<Peer*> lost;
  for (const auto& [run, known] : peers_) {
    if (known->gone()) lost.push_back(known.get());
  }
  for (Peer* known : lost) {
    die(*known, now);
    reclaim(*known);
  }
  Peer& self = peer(options_.self);
  while (!self.children.empty()) {
    child_gone(self, ForkId(self.children.begin()->first), /*accepted=*/false);
  }
  std::vector<ForkId> users;
  for (const auto& [fork, user] : users_) users.push_back(fork);
  for (const ForkId& fork : users) {
    UserRecord& user = users_.find(fork)->second;
    user.refs = 0;
    settle_user(user);
  }
  std::vector<RRefId> owned;
  for (const auto& [id, record] : owned_) owned.push_back(id);
  for (const RRefId& id : owned) {
    OwnerRecord& record = owned_.find(id)->second;
    record.local = 0;
    settle_owned(record);
  }
}

// Nothing to let go, nobody to tell.
bool RRefProtocol::quiet() const {
  return users_.empty() && owned_.empty() && std::ranges::all_of(peers_, [](const auto& entry) {
           const Peer& known = *entry.second;
           return known.gone() || (known.children.empty() && known.link.unacknowledged() == 0);
         });
}

void RRefProtocol::close(TimePoint now) {
  DrainReport report;
  report.clean = quiet();
  report.leaks = holdings();
  report.leak_count = report.leaks.size();
  if (report.leaks.size() > DrainReport::kMostLeaks) report.leaks.resize(DrainReport::kMostLeaks);
  report.elapsed = now - drain_begun_;
  closed_ = true;
  std::vector<WaitId> waits;
  for (const auto& [id, wait] : waits_) waits.push_back(id);
  for (const WaitId id : waits) finish_wait(id, shut_down("wait for a remote reference"));
  for (const auto& [run, known] : peers_) {
    if (!known->gone()) report.unheard += known->link.unacknowledged();
    known->link.clear();
    known->held.clear();
    known->children.clear();
    known->taken_back.clear();
    known->unborn.clear();
  }
  for (auto& [id, record] : owned_) {
    // One that is still being made is released by its value_set().
    if (record.born && record.state != OwnerRecord::State::kPending) out_.releases.push_back(id);
  }
  owned_.clear();
  users_.clear();
  timers_.clear();
  unborn_ = pending_users_ = 0;
  out_.drained = std::move(report);
}

std::vector<Leak> RRefProtocol::holdings() const {
  std::map<const OwnerRecord*, std::vector<WorkerRun>> holders;
  for (const auto& [run, known] : peers_) {
    for (const auto& [fork, record] : known->held) holders[record].push_back(run);
  }
  std::vector<Leak> found;
  for (const auto& [id, record] : owned_) {
    found.push_back({Leak::Kind::kOwned, id, *record.what, holders[&record], record.local});
  }
  for (const auto& [fork, user] : users_) {
    const RRefId& id = user.id.rref;
    found.push_back({Leak::Kind::kUsed, id, *user.what, {id.owner}, user.refs});
  }
  for (const auto& [run, known] : peers_) {
    for (const auto& [fork, child] : known->children) {
      if (child.parent.serial == 0 && run != options_.self) continue;  // among the holders
      found.push_back({Leak::Kind::kPassedOn, child.rref, "", {run}, 0});
    }
  }
  return found;
}

std::string describe(const Leak& leak) {
  std::string text = label(leak.rref, leak.what) + ": ";
  std::map<int32_t, size_t> by_rank;
  for (const WorkerRun& run : leak.others) ++by_rank[run.rank];
  std::string ranks;
  for (const auto& [rank, count] : by_rank) {
    if (!ranks.empty()) ranks += ", ";
    ranks += "rank " + std::to_string(rank);
    if (count > 1) ranks += " (" + std::to_string(count) + ")";
  }
  switch (leak.kind) {
    case Leak::Kind::kOwned:
      text += "kept by handles on " + (ranks.empty() ? "no other worker" : ranks);
      break;
    case Leak::Kind::kUsed:
      text += "a handle here, the value is on " + ranks;
      break;
    case Leak::Kind::kPassedOn:
      text += "passed on to " + ranks + ", which has not accepted it";
      break;
  }
  if (leak.local_handles > 0) text += "; handles here: " + std::to_string(leak.local_handles);
  return text;
}

}  // namespace farspan::rref
