// What comes in on the lines.
#include <algorithm>
#include <cstring>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/messages/told_error.h>

namespace farspan::dist::cpu {
namespace {

messages::Envelope envelope_of(const Letter& letter) {
  return {letter.from, letter.tag, static_cast<DType>(letter.type), letter.count,
          letter.is_announced != 0};
}

}  // namespace

void Post::greet(Line& line, const Letter& hello) {
  const bool is_rank = hello.from >= 0 && static_cast<size_t>(hello.from) < world_.names.size();
  if (line.is_dialled() || hello.offer != token_ || !is_rank || line.peer() >= 0) {
    throw Error(Code::kCorrupt, "a stranger has connected");
  }
  MutexLock lock(mutex_);
  line.set_peer(hello.from);
  const auto own = lines_.find(hello.from);
  if (own != lines_.end()) line.set_way_back(own->second);
}

void Post::on_letter(Line& line, const Letter& letter, std::span<const std::byte> rest,
                     std::vector<Ending>& endings) {
  if (line.peer() < 0 && letter.kind != Letter::kHello) {
    throw Error(Code::kCorrupt, "a stranger has connected");
  }
  Doing doing;
  switch (letter.kind) {
    case Letter::kHello:
      greet(line, letter);
      break;
    case Letter::kMessage:
    case Letter::kOffer:
      message_came(line, letter, rest, doing);
      break;
    case Letter::kWithdraw:
      withdrawn(line, letter, rest, doing);
      break;
    case Letter::kAccept: {
      MutexLock lock(mutex_);
      const auto found = offers_.find(letter.offer);
      if (found == offers_.end()) break;
      check_answer(line, *found->second);
      found->second->is_accepted = true;
      doing.accepted = found->second;
      break;
    }
    case Letter::kTaken:
      taken(line, letter, doing);
      break;
    case Letter::kRefuse:
      refused(line, letter, rest, doing);
      break;
    case Letter::kClaimed:
      line.give_room(letter.count);
      break;
    case Letter::kAskLeft: {
      MutexLock lock(mutex_);
      if (!left_.contains(letter.group)) break;
      Letter answer;
      answer.kind = Letter::kLeft;
      answer.group = letter.group;
      answer.from = letter.from;
      doing.replies.push_back(
          {std::static_pointer_cast<Line>(line.shared_from_this()), answer, {}});
      break;
    }
    case Letter::kLeft:
      note_left(letter.group, line.peer(), doing);
      break;
    case Letter::kAskWaits: {
      const WaitsFor whom = world_.waits_for(letter.group);
      Letter answer = letter;
      answer.kind = Letter::kWaits;
      answer.from = whom.rank;
      answer.count = whom.has_called ? 1 : 0;
      line.post(answer);
      break;
    }
    case Letter::kWaits: {
      MutexLock lock(mutex_);
      const auto found = questions_.find(letter.offer);
      if (found == questions_.end()) break;
      endings.push_back({.future = nullptr, .go_on = [asked = found->second, letter] {
                           asked.set_value(WaitsFor{letter.from, letter.count != 0});
                         }});
      questions_.erase(found);
      break;
    }
    case Letter::kFailed:
      world_.on_failed(letter.group, {messages::ToldError::from(rest), letter.count});
      break;
    default:
      throw Error(Code::kCorrupt, "a letter of an unknown kind");
  }
  perform(doing);
  if (doing.accepted) {
    endings.push_back(
        {.future = nullptr, .go_on = [self = shared_from_this(), sending = doing.accepted] {
           self->write_accepted(sending);
         }});
  }
  std::move(doing.endings.begin(), doing.endings.end(), std::back_inserter(endings));
}

void Post::write_accepted(const std::shared_ptr<Sending>& sending) {
  const auto lines = lines_for(*sending);
  {
    MutexLock lock(mutex_);  // nobody withdraws it in between
    if (!offers_.contains(sending->id)) return;
    for (const auto& one : lines) one->add(sending);
  }
  for (const auto& one : lines) one->write_on();
  for (const auto& one : lines) one->tell_news();
}

Error Post::has_left() const { return left_error(name_of(world_.rank)); }

Post::Doing::Reply Post::refusal_of(std::shared_ptr<Line> line, uint64_t offer, const Error& why) {
  Letter letter;
  letter.kind = Letter::kRefuse;
  letter.offer = offer;
  return {std::move(line), letter, messages::ToldError::of(why).text()};
}

void Post::message_came(Line& line, const Letter& letter, std::span<const std::byte> rest,
                        Doing& doing) {
  const messages::Envelope envelope = envelope_of(letter);
  const bool is_eager = letter.kind == Letter::kMessage;
  if (envelope.from < 0 || size_of(envelope.type) == 0 ||
      (is_eager ? envelope.bytes() != rest.size()
                : letter.offer == 0 || (!rest.empty() && rest.size() != sizeof(Origin)))) {
    throw Error(Code::kCorrupt, "a message that is none");
  }
  auto self = std::static_pointer_cast<Line>(line.shared_from_this());
  Inbox::Arrived message{envelope, {{}, is_eager ? 0 : letter.offer, std::move(self)}};
  if (!is_eager && !rest.empty()) {
    std::memcpy(&message.content.origin.emplace(), rest.data(), sizeof(Origin));
  }
  MutexLock lock(mutex_);
  const auto failed = failed_.find(letter.group);
  if (left_.contains(letter.group) || failed != failed_.end()) {  // nobody takes it any more
    if (is_eager) return claim_locked(message.content.line, envelope.bytes(), doing);
    doing.replies.push_back(refusal_of(message.content.line, letter.offer,
                                       failed != failed_.end() ? failed->second : has_left()));
    return;
  }
  Inbox& inbox = boxes_[letter.group].inbox;
  if (is_eager) message.content.bytes.assign(rest.begin(), rest.end());
  if (const auto receive = inbox.match(envelope)) {
    match_locked(std::move(message), receive, doing);
  } else {
    inbox.keep(std::move(message));
  }
}

std::shared_ptr<Filling> Post::find(const Line& line, uint64_t offer) {
  MutexLock lock(mutex_);
  const auto found = fillings_.find({line.peer(), offer});
  return found == fillings_.end() ? nullptr : found->second;
}

void Post::on_filled(const Line& line, uint64_t offer, std::vector<Ending>& endings) {
  MutexLock lock(mutex_);
  const auto found = fillings_.find({line.peer(), offer});
  if (found == fillings_.end()) return;
  endings.push_back({found->second->receive(), found->second->from});
  fillings_.erase(found);
}

class Post::PullTask final : public net::Task {
 public:
  PullTask(std::shared_ptr<Post> post, std::shared_ptr<Pull> message)
      : post_(std::move(post)), message_(std::move(message)) {
    patient = true;
  }
  void run() noexcept override { post_->pull(message_, Deadline::never()); }
  void reject(const Error&) noexcept override {}  // at the end, when all has ended

 private:
  const std::shared_ptr<Post> post_;
  const std::shared_ptr<Pull> message_;
};

// Several threads may read one message; whoever reads the last piece ends it.
void Post::pull(const std::shared_ptr<Pull>& message, Deadline deadline) {
  if (const auto taken = message->run(deadline)) end_pull(*message, *taken);
}

// Not by the thread that has found it, which others need; whoever waits for the message helps.
void Post::pull_by_threads(const std::shared_ptr<Pull>& message) {
  for (int thread = 0; thread < 2; ++thread) {
    reactor_->run(std::make_unique<PullTask>(shared_from_this(), message));
  }
}

// Who has withdrawn it does not mind being asked for it.
void Post::end_pull(const Pull& message, bool taken) {
  Letter answer;
  answer.kind = taken ? Letter::kTaken : Letter::kAccept;
  answer.offer = message.offer;
  std::shared_ptr<Line> line;
  std::shared_ptr<messages::Receive> receive;
  {
    MutexLock lock(mutex_);
    line = answers_locked(message.line);
  }
  line->post(answer);
  if (!taken) return;
  {
    MutexLock lock(mutex_);
    const auto found = fillings_.find({message.line->peer(), message.offer});
    if (found == fillings_.end()) return;  // whoever waited has given up
    receive = found->second->give_up();
    fillings_.erase(found);
  }
  receive->set_value(message.filling->from);
}

void Post::withdrawn(const Line& line, const Letter& letter, std::span<const std::byte> rest,
                     Doing& doing) {
  const std::string who = name_of(line.peer());
  Error why = Error(Code::kTimeout, who + " gave up sending before all had come")
                  .worker(who)
                  .advice("give the send more time");
  MutexLock lock(mutex_);
  if (!rest.empty()) {  // the group has failed there; it is told in a letter of its own, too
    const auto failed = failed_.find(letter.group);
    why = failed != failed_.end() ? failed->second : messages::ToldError::from(rest);
  }
  const auto box = boxes_.find(letter.group);
  if (box != boxes_.end()) {
    box->second.inbox.drop_if([&](const auto& one) {
      return one.content.line.get() == &line && one.content.offer == letter.offer;
    });
  }
  const auto filling = fillings_.find({line.peer(), letter.offer});
  if (filling == fillings_.end()) return;
  doing.endings.push_back({filling->second->give_up(), -1, std::move(why)});
  fillings_.erase(filling);
}

// Only who was offered a message answers.
void Post::check_answer(const Line& line, const Sending& sending) {
  if (line.peer() == sending.rank) return;
  throw Error(Code::kCorrupt, "an answer to another rank's message");
}

void Post::taken(const Line& line, const Letter& letter, Doing& doing) {
  MutexLock lock(mutex_);
  const auto found = offers_.find(letter.offer);
  if (found == offers_.end()) return;
  check_answer(line, *found->second);
  doing.endings.push_back({found->second, found->second->message.peer});
  offers_.erase(found);
}

void Post::refused(const Line& line, const Letter& letter, std::span<const std::byte> text,
                   Doing& doing) {
  MutexLock lock(mutex_);
  const auto found = offers_.find(letter.offer);
  if (found == offers_.end()) return;
  check_answer(line, *found->second);
  for (const auto& one : all_lines_locked(line.peer())) one->give_up(*found->second);
  const std::string to = name_of(found->second->rank);
  doing.endings.push_back({found->second, -1, messages::ToldError::from(text).worker(to)});
  offers_.erase(found);
}

// Its messages that have come stay, and are given to who asks for them.
void Post::note_left(uint64_t group, int rank, Doing& doing) {
  MutexLock lock(mutex_);
  if (left_.contains(group)) return;
  boxes_[group].left.insert(rank);
  end_hopeless_locked(group, doing);
}

}  // namespace farspan::dist::cpu
