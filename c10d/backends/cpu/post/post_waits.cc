// Who waits: what to do when time passes.
#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/post/waiting.h>
#include <farspan/c10d/backends/messages/told_error.h>

namespace farspan::dist::cpu {
namespace {

constexpr std::chrono::milliseconds kLookAgain{100};
// After this the other end is watched.
constexpr std::chrono::milliseconds kLongWait{500};

//   is_found  both ends know of it
bool is_over(const Message& message, bool is_found) {
  const Deadline deadline = message.deadline;
  if (!message.announced_by || !is_found || deadline.is_never()) return deadline.expired();
  return Deadline(deadline.at() + messages::kFoundGrace).expired();
}

}  // namespace

bool Sending::block(Deadline deadline) { return post_->wait(*this, deadline); }

Error Post::late(const Sending& sending) const {
  return messages::not_taken_error(name_of(sending.rank), sending.message.tag);
}

Error Post::late(const Receive& receive) const {
  const int rank = static_cast<const Waiting&>(receive).rank;
  return messages::not_come_error(rank < 0 ? "any rank" : name_of(rank), receive.wanted.tag);
}

bool Post::wait(Sending& sending, Deadline deadline) {
  std::shared_ptr<Line> line;
  {
    MutexLock lock(mutex_);
    line = visitor_locked(sending.rank);  // where it is, answers come on it
    const auto own = lines_.find(sending.rank);
    if (!line && own != lines_.end() && own->second->is_open()) line = own->second;
  }
  const Deadline own = sending.message.deadline;
  if (reactor_->wait(sending, earlier(deadline, own), line.get())) return true;
  return own.expired() && expire(sending, deadline);
}

bool Post::wait(Waiting& receive, Deadline deadline) {
  std::shared_ptr<Line> line;
  std::shared_ptr<Pull> message;
  {
    MutexLock lock(mutex_);
    message = receive.pull.lock();
    line = receive.rank < 0 ? nullptr : visitor_locked(receive.rank);
  }
  if (message) pull(message, earlier(deadline, receive.wanted.deadline));
  const Deadline own = receive.wanted.deadline;
  if (reactor_->wait(receive, earlier(deadline, own), line.get())) return true;
  return own.expired() && expire(receive, deadline);
}

bool Post::withdraw_locked(Sending& sending, Doing& doing) {
  if (offers_.erase(sending.id) == 0) return false;
  const auto box = boxes_.find(sending.group);
  if (sending.rank == world_.rank && box != boxes_.end()) {
    box->second.inbox.drop_if(
        [&](const auto& one) { return !one.content.line && one.content.offer == sending.id; });
  }
  sending.withdraw_mark();
  for (const auto& one : all_lines_locked(sending.rank)) one->give_up(sending);
  const auto line = lines_.find(sending.rank);
  if (line == lines_.end()) return true;
  Letter letter;
  letter.kind = Letter::kWithdraw;
  letter.group = sending.group;
  letter.offer = sending.id;
  doing.replies.push_back({line->second, letter, {}});
  const auto failed = failed_.find(sending.group);
  if (failed != failed_.end()) {
    doing.replies.back().text = messages::ToldError::of(failed->second).text();
  } else if (left_.contains(sending.group)) {
    doing.replies.back().text = messages::ToldError::of(has_left()).text();
  }
  return true;
}

void Post::withdraw_if_locked(const std::function<bool(const Sending&)>& condition,
                              const std::function<Error(const Sending&)>& why, Doing& doing) {
  std::vector<std::shared_ptr<Sending>> chosen;
  for (const auto& [id, sending] : offers_) {
    if (condition(*sending)) chosen.push_back(sending);
  }
  for (const auto& sending : chosen) {
    if (withdraw_locked(*sending, doing)) doing.endings.push_back({sending, -1, why(*sending)});
  }
}

// Of messages that come in just now.
void Post::give_up_if_locked(const std::function<bool(int from, const Waiting&)>& condition,
                             const std::function<Error(const Waiting&)>& why, Doing& doing) {
  std::erase_if(fillings_, [&](const auto& one) {
    const auto& receive = static_cast<const Waiting&>(*one.second->receive());
    if (!condition(one.first.first, receive)) return false;
    const auto ended = one.second->give_up();  // nothing is written there any more
    doing.endings.push_back({ended, -1, why(static_cast<const Waiting&>(*ended))});
    return true;
  });
}

// False when its message is being copied just now.
bool Post::withdraw_locked(Waiting& receive) {
  const auto box = boxes_.find(receive.group);
  if (box != boxes_.end() && box->second.inbox.withdraw(receive)) return true;
  const auto filling = std::find_if(fillings_.begin(), fillings_.end(), [&](const auto& one) {
    return one.second->receive().get() == &receive;
  });
  if (filling == fillings_.end()) return false;
  if (receive.wanted.announced_by) return false;  // look() ends it
  filling->second->give_up();
  fillings_.erase(filling);
  return true;
}

// Its own deadline has passed, and not that of who waits.
bool Post::expire(Sending& sending, Deadline deadline) {
  Doing doing;
  bool withdrawn = false;
  {
    MutexLock lock(mutex_);
    const bool goes_on = sending.envelope.is_announced && sending.is_accepted;  // look() ends it
    withdrawn = !goes_on && withdraw_locked(sending, doing);
  }
  perform_and_tell(doing);
  if (withdrawn) sending.set_error(late(sending));
  return sending.sleep(deadline);  // else whoever took it is about to tell
}

bool Post::expire(Waiting& receive, Deadline deadline) {
  bool withdrawn = false;
  {
    MutexLock lock(mutex_);
    withdrawn = withdraw_locked(receive);
  }
  if (withdrawn) receive.set_error(late(receive));
  return receive.sleep(deadline);
}

void Post::look_soon_locked() {
  if (std::exchange(looking_, true)) return;
  reactor_->timers().add(Clock::now() + kLookAgain, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->look();
  });
}

bool Post::look_at_locked(uint64_t group, Box& box, Looks& looks, Doing& doing) {
  bool some_left = false;
  for (auto& receive : box.inbox.posted()) {
    if (receive->wanted.deadline.expired()) {
      box.inbox.withdraw(*receive);
      Error why = late(*receive);
      doing.endings.push_back({std::move(receive), -1, std::move(why)});
      continue;
    }
    some_left = true;
    if (Clock::now() - receive->posted < kLongWait) continue;
    for (size_t place = 0; place < box.ranks.size(); ++place) {
      const int rank = box.ranks[place];
      if (rank == world_.rank || gone_.contains(rank)) continue;
      if (receive->wanted.peer >= 0 && static_cast<size_t>(receive->wanted.peer) != place) continue;
      looks.watched.insert(rank);
      if (box.asked.insert(static_cast<int>(place)).second) looks.asked.emplace(group, rank);
    }
  }
  return some_left;
}

// Ends what nobody waits for and whose time has passed, and watches those that others wait for.
void Post::look() {
  Doing doing;
  Looks looks;
  {
    MutexLock lock(mutex_);
    looking_ = false;
    bool some_left = !offers_.empty() || !fillings_.empty();
    for (auto& [group, box] : boxes_) some_left |= look_at_locked(group, box, looks, doing);
    for (const auto& [id, sending] : offers_) {
      const bool is_long = Clock::now() - sending->begun > kLongWait;
      if (is_long && sending->rank != world_.rank) looks.watched.insert(sending->rank);
    }
    withdraw_if_locked([](const Sending& one) { return is_over(one.message, one.is_accepted); },
                       [this](const Sending& one) { return late(one); }, doing);
    give_up_if_locked([](int, const Waiting& one) { return is_over(one.wanted, true); },
                      [this](const Waiting& one) {
                        if (one.wanted.announced_by) {
                          *one.wanted.announced_by = messages::kNotComeInTime;
                        }
                        return late(one);
                      },
                      doing);
    if (some_left && !stopped_) look_soon_locked();
  }
  perform_and_tell(doing);
  for (const int rank : looks.watched) world_.watch(rank);
  for (const auto& [group, rank] : looks.asked) ask_whether_left(group, rank);
}

std::optional<WaitsFor> Post::ask_waits(uint64_t group, int rank, Deadline deadline) noexcept {
  const Promise<WaitsFor> promise;
  const auto answer = promise.future();
  Letter letter;
  letter.kind = Letter::kAskWaits;
  letter.group = group;
  letter.offer = next_offer_.fetch_add(1);
  {
    MutexLock lock(mutex_);
    questions_.emplace(letter.offer, promise);
  }
  const auto line = line_to(rank);
  net::Source* const hint = line->is_open() ? line.get() : nullptr;
  const bool came = line->post(letter) && reactor_->wait(*answer.state(), deadline, hint);
  {
    MutexLock lock(mutex_);
    questions_.erase(letter.offer);
  }
  if (!came) return std::nullopt;
  return answer.value();
}

// The answer comes only from who has.
void Post::ask_whether_left(uint64_t group, int rank) {
  Letter letter;
  letter.kind = Letter::kAskLeft;
  letter.group = group;
  {
    MutexLock lock(mutex_);
    const auto box = boxes_.find(group);
    if (box == boxes_.end()) return;
    const auto& ranks = box->second.ranks;
    letter.from = static_cast<int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  line_to(rank)->post(letter);
}

}  // namespace farspan::dist::cpu
