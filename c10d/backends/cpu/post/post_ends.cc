// How messages end that cannot arrive: a line, a group, a rank, or all have ended.
#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/post/waiting.h>
#include <farspan/c10d/base/log.h>

namespace farspan::dist::cpu {

void Post::on_end(Line& line, const Error& why) {
  if (why.code() == Code::kCorrupt) {
    log(LogLevel::kError, "c10d/backends/cpu", std::string("a line ends: ") + why.what());
  }
  Doing doing;
  const int peer = line.peer();
  {
    MutexLock lock(mutex_);
    if (line.is_dialled()) {
      const auto found = lines_.find(peer);
      if (found != lines_.end() && found->second.get() == &line) lines_.erase(found);
      std::erase_if(offers_, [&](const auto& one) {
        if (one.second->rank != peer) return false;
        doing.endings.push_back({one.second, -1, gone(peer)});
        return true;
      });
    } else {
      std::erase_if(visitors_, [&](const auto& one) { return one.get() == &line; });
      for (auto& [group, box] : boxes_) {
        box.inbox.drop_if([&](const auto& one) {
          return one.content.offer != 0 && one.content.line.get() == &line;
        });
      }
      std::erase_if(fillings_, [&](const auto& one) {
        if (one.first.first != &line) return false;
        one.second->give_up();
        doing.endings.push_back({one.second->receive(), -1, peer < 0 ? why : gone(peer)});
        return true;
      });
    }
  }
  perform_and_tell(doing);
  if (peer >= 0) world_.on_gone(peer);
}

// Receives for which nothing can come any more.
void Post::end_hopeless_locked(uint64_t group, Doing& doing) {
  Box& box = boxes_.at(group);
  if (box.ranks.empty()) return;
  for (auto& receive : box.inbox.posted()) {
    auto why = why_none_locked(group, *receive);
    if (!why) continue;
    box.inbox.withdraw(*receive);
    doing.endings.push_back({std::move(receive), -1, std::move(why)});
  }
}

void Post::fail(uint64_t group, const Error& why) noexcept {
  Doing doing;
  {
    MutexLock lock(mutex_);
    const auto box = boxes_.find(group);
    if (box != boxes_.end()) {
      for (auto& receive : box->second.inbox.posted()) {
        box->second.inbox.withdraw(*receive);
        doing.endings.push_back({std::move(receive), -1, why});
      }
    }
    withdraw_if_locked([&](const Sending& one) { return one.group == group; },
                       [&](const Sending&) { return why; }, doing);
    std::erase_if(fillings_, [&](const auto& one) {
      const auto& receive = static_cast<const Waiting&>(*one.second->receive());
      if (receive.group != group) return false;
      one.second->give_up();
      doing.endings.push_back({one.second->receive(), -1, why});
      return true;
    });
  }
  perform_and_tell(doing);
}

void Post::leave(uint64_t group, const GroupSpec& spec) noexcept {
  fail(group, Error(Code::kShutdown, "this rank has left the group"));
  std::vector<std::shared_ptr<Line>> lines;
  {
    MutexLock lock(mutex_);
    boxes_.erase(group);
    left_.insert(group);
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
}

void Post::lose(int rank) noexcept {
  Doing doing;
  {
    MutexLock lock(mutex_);
    if (!gone_.insert(rank).second) return;
    for (auto& [group, box] : boxes_) {
      if (std::find(box.ranks.begin(), box.ranks.end(), rank) != box.ranks.end()) {
        end_hopeless_locked(group, doing);
      }
    }
    withdraw_if_locked([&](const Sending& one) { return one.rank == rank; },
                       [&](const Sending&) { return gone(rank); }, doing);
  }
  perform_and_tell(doing);
}

void Post::stop(Millis at_most) noexcept {
  std::vector<std::shared_ptr<Line>> lines;
  std::set<uint64_t> groups;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& [rank, line] : lines_) lines.push_back(line);
    lines.insert(lines.end(), visitors_.begin(), visitors_.end());
    early_.clear();
    for (const auto& [group, box] : boxes_) groups.insert(group);
    for (const auto& [id, sending] : offers_) groups.insert(sending->group);
  }
  for (const uint64_t group : groups) {
    fail(group, Error(Code::kShutdown, "this rank has left the group"));
  }
  listener_.reset();
  const Deadline deadline = Deadline::after(at_most);
  for (const auto& line : lines) {
    line->drain(deadline);
    line->close();
  }
  MutexLock lock(mutex_);
  lines_.clear();
  visitors_.clear();
}

}  // namespace farspan::dist::cpu
