// How messages end that cannot arrive: a line, a group, a rank, or all have ended.
#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/post/waiting.h>
#include <farspan/c10d/backends/messages/told_error.h>
#include <farspan/c10d/base/log.h>

namespace farspan::dist::cpu {
namespace {

constexpr Millis kLastWords{1'500};
constexpr Millis kLookAgain{50};

}  // namespace

void Post::on_end(Line& line, const Error& why) {
  if (why.code() == Code::kCorrupt) {
    log(LogLevel::kError, "c10d/backends/cpu", std::string("a line ends: ") + why.what());
  }
  {
    MutexLock lock(mutex_);
    if (line.is_dialled()) {
      const auto found = lines_.find(line.peer());
      if (found != lines_.end() && found->second.get() == &line) lines_.erase(found);
      std::erase_if(stripes_, [&](const auto& one) { return one.second.get() == &line; });
    } else {
      std::erase_if(visitors_, [&](const auto& one) { return one.get() == &line; });
      for (auto& [group, box] : boxes_) {
        box.inbox.drop_if([&](const auto& one) {
          return one.content.offer != 0 && one.content.line.get() == &line;
        });
      }
    }
  }
  if (line.peer() >= 0) suspect(line.peer());
}

// A process that ends closes all its lines. What it has said on those that are left, that a group
// has failed perhaps, or was sending still, is read before it counts as gone; so is what it says on
// one that nobody has accepted yet.
void Post::suspect(int rank) noexcept { suspect_soon(rank, Deadline::after(kLastWords)); }

void Post::suspect_soon(int rank, Deadline deadline) noexcept {
  reactor_->timers().add(Clock::now() + kLookAgain, [weak = weak_from_this(), rank, deadline] {
    if (const auto self = weak.lock()) self->look_at_suspect(rank, deadline);
  });
}

void Post::look_at_suspect(int rank, Deadline deadline) noexcept {
  bool may_speak = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    may_speak = !opened_ || !all_lines_locked(rank).empty() ||
                std::any_of(visitors_.begin(), visitors_.end(), [&](const auto& one) {
                  return one->peer() == rank || one->peer() < 0;
                });
    may_speak = may_speak && !(opened_ && deadline.expired());
  }
  if (!may_speak) return world_.on_gone(rank);
  suspect_soon(rank, deadline);
}

// Receives for which nothing can come any more.
void Post::end_hopeless_locked(uint64_t group, Doing& doing) {
  Box& box = boxes_.at(group);
  if (box.ranks.empty()) return;
  bool some_from_anyone = false;
  for (auto& receive : box.inbox.posted()) {
    auto why = why_none_locked(group, *receive, doing);
    if (!why) continue;
    some_from_anyone |= receive->wanted.peer < 0;
    box.inbox.withdraw(*receive);
    doing.endings.push_back({std::move(receive), -1, std::move(why)});
  }
  if (some_from_anyone) note_told_locked(box);
}

void Post::fail(uint64_t group, const Error& why) noexcept {
  note_failure(group, why);
  end_all(group, why, why);
}

// What is under way here, and what others have offered.
void Post::end_all(uint64_t group, const Error& why, const Error& why_others) noexcept {
  Doing doing;
  {
    MutexLock lock(mutex_);
    const auto box = boxes_.find(group);
    if (box != boxes_.end()) {
      refuse_all_locked(box->second, why_others, false, doing);
      for (auto& receive : box->second.inbox.posted()) {
        box->second.inbox.withdraw(*receive);
        doing.endings.push_back({std::move(receive), -1, why});
      }
    }
    withdraw_if_locked([&](const Sending& one) { return one.group == group; },
                       [&](const Sending&) { return why; }, doing);
    give_up_if_locked([&](int, const Waiting& one) { return one.group == group; },
                      [&](const Waiting&) { return why; }, doing);
  }
  perform_and_tell(doing);
}

void Post::note_failure(uint64_t group, const Error& why) noexcept {
  MutexLock lock(mutex_);
  if (!left_.contains(group)) failed_.emplace(group, why);
}

// What has come, and nobody will ask for.
void Post::refuse_all_locked(Box& box, const Error& why, bool has_left_group, Doing& doing) {
  std::vector<std::pair<std::shared_ptr<Line>, uint64_t>> eager;
  box.inbox.drop_if([&](const auto& one) {
    const Content& content = one.content;
    // What has come whole before a failure can be received still.
    if (content.offer == 0 && !has_left_group) return false;
    if (content.offer == 0) {
      eager.emplace_back(content.line, one.envelope.bytes());
    } else if (!content.line) {
      return false;  // this rank's own ends with its sending
    } else {
      doing.replies.push_back(refusal_of(content.line, content.offer, why));
    }
    return true;
  });
  for (const auto& [line, bytes] : eager) claim_locked(line, bytes, doing);
}

void Post::tell_failure(uint64_t group, int rank, const Failure& failure, bool may_dial) noexcept {
  std::shared_ptr<Line> line;
  {
    MutexLock lock(mutex_);
    const auto dialled = lines_.find(rank);
    if (dialled != lines_.end()) line = dialled->second;
    if (!line) line = visitor_locked(rank);
  }
  if (!line && may_dial) line = line_to(rank);
  if (!line) return;
  Letter letter;
  letter.kind = Letter::kFailed;
  letter.group = group;
  letter.count = failure.since;
  const std::string told = messages::ToldError::of(failure.why).text();
  line->post(letter, std::as_bytes(std::span(told)));
}

void Post::leave(uint64_t group, const GroupSpec& spec) noexcept {
  {
    MutexLock lock(mutex_);
    left_.insert(group);  // first: nothing is posted any more
  }
  end_all(group, left_error(), has_left());
  Doing doing;
  std::vector<std::shared_ptr<Line>> lines;
  {
    MutexLock lock(mutex_);
    const auto box = boxes_.find(group);
    if (box != boxes_.end()) {
      refuse_all_locked(box->second, has_left(), true, doing);
      boxes_.erase(box);
    }
    failed_.erase(group);
    const auto is_member = [&](int rank) {
      return std::find(spec.ranks.begin(), spec.ranks.end(), rank) != spec.ranks.end();
    };
    for (const auto& [rank, line] : lines_) {
      if (is_member(rank)) lines.push_back(line);
    }
    for (const auto& line : visitors_) {
      if (is_member(line->peer()) && !lines_.contains(line->peer())) lines.push_back(line);
    }
  }
  Letter letter;
  letter.kind = Letter::kLeft;
  letter.group = group;
  letter.from = spec.rank;
  for (const auto& line : lines) line->post(letter);
  perform(doing);
}

void Post::lose(int rank) noexcept {
  Doing doing;
  {
    MutexLock lock(mutex_);
    // The group may have failed before, and that be the reason why the rank is gone.
    const auto why_lost = [this, rank, failures = &failed_](uint64_t group) {
      const auto failed = failures->find(group);
      return failed == failures->end() ? gone(rank) : failed->second;
    };
    gone_.insert(rank);  // perhaps once more, and for what a line had brought that has ended since
    for (auto& [group, box] : boxes_) {
      if (std::find(box.ranks.begin(), box.ranks.end(), rank) != box.ranks.end()) {
        end_hopeless_locked(group, doing);
      }
    }
    withdraw_if_locked([&](const Sending& one) { return one.rank == rank; },
                       [&](const Sending& one) { return why_lost(one.group); }, doing);
    give_up_if_locked([&](int from, const Waiting&) { return from == rank; },
                      [&](const Waiting& one) { return why_lost(one.group); }, doing);
  }
  perform_and_tell(doing);
}

bool Post::has_left(uint64_t group, int rank) const noexcept {
  MutexLock lock(mutex_);
  const auto box = boxes_.find(group);
  return box == boxes_.end() ? has_left_job_locked(rank) : has_left_locked(box->second, rank);
}

void Post::explain(int rank, bool has_left) noexcept {
  reactor_->timers().add(TimePoint(), [weak = weak_from_this(), rank, has_left] {
    const auto self = weak.lock();
    if (!self) return;
    Doing doing;
    {
      MutexLock lock(self->mutex_);
      self->fates_[rank] = has_left ? Fate::kLeft : Fate::kDied;
      for (const auto& [group, box] : self->boxes_) self->end_hopeless_locked(group, doing);
    }
    self->perform_and_tell(doing);
  });
}

void Post::stop(Millis at_most) noexcept {
  std::vector<std::shared_ptr<Line>> lines;
  std::set<uint64_t> groups;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& [rank, line] : lines_) lines.push_back(line);
    for (const auto& [rank, line] : stripes_) lines.push_back(line);
    lines.insert(lines.end(), visitors_.begin(), visitors_.end());
    early_.clear();
    for (const auto& [group, box] : boxes_) groups.insert(group);
    for (const auto& [id, sending] : offers_) groups.insert(sending->group);
  }
  for (const uint64_t group : groups) {
    end_all(group, left_error(), has_left());
  }
  listener_.reset();
  hosts_listener_.reset();
  const Deadline deadline = Deadline::after(at_most);
  for (const auto& line : lines) {
    line->drain(deadline);
    line->close();
  }
  MutexLock lock(mutex_);
  lines_.clear();
  stripes_.clear();
  visitors_.clear();
  boxes_.clear();  // messages know their lines, and those what they were filling, which knows this
}

}  // namespace farspan::dist::cpu
