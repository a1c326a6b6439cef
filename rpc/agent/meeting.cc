#include <farspan/rpc/agent/meeting.h>

#include <algorithm>

namespace farspan::agent {
namespace {
constexpr int kLeader = 0;
constexpr const char* kLeaderIsGone =
    "worker 0, which leads the shutdown, is gone: it crashed, or ended without shutdown()";
}  // namespace

Meeting::Meeting(int self, int world_size)
    : self_(self), world_size_(world_size), reports_(static_cast<size_t>(world_size)) {}

Meeting::Action Meeting::enter(uint64_t phase) {
  Action action;
  phase_ = phase;
  round_ = 1;
  reporting_ = true;
  done_ = false;
  last_sums_.reset();
  // Who was lost earlier may be back on a new line; who is not is lost again when he is spoken to.
  if (phase == 1) lost_.clear();
  action.report_when_quiet = true;
  if (lost_.count(kLeader) > 0) {
    action.failure = Error(Code::kDisconnected, kLeaderIsGone);
  }
  if (self_ != kLeader) return action;
  // Said to all at once, so that a worker that has died is noticed now.
  for (int rank = 1; rank < world_size_; ++rank) {
    if (lost_.count(rank) == 0) {
      action.sends.push_back({rank, {MeetingMessage::Type::kAsk, phase_, round_, 0, 0}});
    }
  }
  return action;
}

Meeting::Action Meeting::quiet(uint64_t sent, uint64_t received) {
  if (!reporting_ || done_) return {};
  reporting_ = false;
  const MeetingMessage message{MeetingMessage::Type::kReport, phase_, round_, sent, received};
  if (self_ == kLeader) {
    note_report(self_, message);
    return conclude_round();
  }
  Action action;
  action.sends.push_back({kLeader, message});
  return action;
}

Meeting::Action Meeting::on_message(int from, const MeetingMessage& message) {
  Action action;
  switch (message.type) {
    case MeetingMessage::Type::kAsk:
      // One for a meeting that this worker has not come to yet is answered when it does.
      if (message.phase == phase_ && message.round > round_ && !done_) {
        round_ = message.round;
        reporting_ = true;
        action.report_when_quiet = true;
      }
      return action;
    case MeetingMessage::Type::kReport:
      if (self_ != kLeader) return action;
      note_report(from, message);
      return conclude_round();
    case MeetingMessage::Type::kDone:
      if (message.phase == phase_) action.done = done_ = true;
      return action;
  }
  return action;
}

Meeting::Action Meeting::on_lost(int rank) {
  lost_.insert(rank);
  some_lost_ = true;
  if (phase_ == 0 || done_) return {};
  if (self_ == kLeader) return conclude_round();
  Action action;
  if (rank == kLeader) {
    action.failure = Error(Code::kDisconnected, kLeaderIsGone);
  }
  return action;
}

std::vector<int> Meeting::missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    const Report& report = reports_[static_cast<size_t>(rank)];
    if (lost_.count(rank) == 0 && (report.phase != phase_ || report.round != round_)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

void Meeting::note_report(int from, const MeetingMessage& message) {
  if (from < 0 || from >= world_size_) return;
  reports_[static_cast<size_t>(from)] = {message.phase, message.round, message.sent,
                                         message.received};
}

Meeting::Action Meeting::conclude_round() {
  Action action;
  if (phase_ == 0 || done_ || !missing().empty()) return action;
  Report sums;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (lost_.count(rank) > 0) continue;
    sums.sent += reports_[static_cast<size_t>(rank)].sent;
    sums.received += reports_[static_cast<size_t>(rank)].received;
  }
  const bool unchanged =
      last_sums_ && last_sums_->sent == sums.sent && last_sums_->received == sums.received;
  // What went to or came from a lost worker is in one sum only.
  const bool agree = sums.sent == sums.received || some_lost_;
  last_sums_ = sums;
  MeetingMessage next{MeetingMessage::Type::kDone, phase_, round_, 0, 0};
  if (unchanged && agree) {
    action.done = done_ = true;
  } else {
    next.type = MeetingMessage::Type::kAsk;
    next.round = ++round_;
    reporting_ = true;
    action.report_when_quiet = true;
    action.pause = round_ > 2;
  }
  for (int rank = 1; rank < world_size_; ++rank) {
    if (lost_.count(rank) == 0) action.sends.push_back({rank, next});
  }
  return action;
}

}  // namespace farspan::agent
