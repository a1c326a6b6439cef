// What comes in on the lines.
#include <algorithm>
#include <cstring>
#include <utility>

#include <farspan/c10d/backends/cpu/post/post.h>

namespace farspan::dist::cpu {
namespace {

messages::Envelope envelope_of(const Letter& letter) {
  return {letter.from, letter.tag, static_cast<DType>(letter.type), letter.count};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void Post::greet(Line& line, const Letter& hello) {
  if (line.is_dialled() || hello.offer != token_ || hello.from < 0) {
    throw Error(Code::kCorrupt, "a stranger has connected");
  }
  line.set_peer(hello.from);
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
      withdrawn(line, letter, doing);
      break;
    case Letter::kAccept: {
      MutexLock lock(mutex_);
      const auto found = offers_.find(letter.offer);
      if (found == offers_.end()) break;
      line.add(found->second);  // under the lock: nobody can withdraw it in between
      doing.accepted = true;
      break;
    }
    case Letter::kRefuse:
      refused(letter, rest, doing);
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
      note_left(letter, doing);
      break;
    default:
      throw Error(Code::kCorrupt, "a letter of an unknown kind");
  }
  perform(doing);
  if (doing.accepted) line.write_on();
  std::move(doing.endings.begin(), doing.endings.end(), std::back_inserter(endings));
}

void Post::message_came(Line& line, const Letter& letter, std::span<const std::byte> rest,
                        Doing& doing) {
  const messages::Envelope envelope = envelope_of(letter);
  const bool is_eager = letter.kind == Letter::kMessage;
  if (envelope.from < 0 || size_of(envelope.type) == 0 ||
      (is_eager && envelope.bytes() != rest.size())) {
    throw Error(Code::kCorrupt, "a message that is none");
  }
  auto self = std::static_pointer_cast<Line>(line.shared_from_this());
  Inbox::Arrived message{envelope, {{}, is_eager ? 0 : letter.offer, std::move(self)}};
  MutexLock lock(mutex_);
  if (left_.contains(letter.group)) {
    if (is_eager) return;
    Letter refusal;
    refusal.kind = Letter::kRefuse;
    refusal.offer = letter.offer;
    refusal.count = static_cast<uint64_t>(Code::kDisconnected);
    doing.replies.push_back(
        {message.content.line, refusal, name_of(world_.rank) + " has left the group"});
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
  const auto found = fillings_.find({&line, offer});
  return found == fillings_.end() ? nullptr : found->second;
}

void Post::on_filled(const Line& line, uint64_t offer, std::vector<Ending>& endings) {
  MutexLock lock(mutex_);
  const auto found = fillings_.find({&line, offer});
  if (found == fillings_.end()) return;
  endings.push_back({found->second->receive(), found->second->from});
  fillings_.erase(found);
}

void Post::withdrawn(const Line& line, const Letter& letter, Doing& doing) {
  MutexLock lock(mutex_);
  const auto box = boxes_.find(letter.group);
  if (box != boxes_.end()) {
    box->second.inbox.drop_if([&](const auto& one) {
      return one.content.line.get() == &line && one.content.offer == letter.offer;
    });
  }
  const auto filling = fillings_.find({&line, letter.offer});
  if (filling == fillings_.end()) return;
  filling->second->give_up();
  doing.endings.push_back(
      {filling->second->receive(), -1,
       Error(Code::kTimeout, name_of(line.peer()) + " gave up sending before all had come")
           .worker(name_of(line.peer()))
           .advice("give the send more time")});
  fillings_.erase(filling);
}

void Post::refused(const Letter& letter, std::span<const std::byte> text, Doing& doing) {
  MutexLock lock(mutex_);
  const auto found = offers_.find(letter.offer);
  if (found == offers_.end()) return;
  const std::string to = name_of(found->second->rank);
  const Code code = code_from_wire(static_cast<uint16_t>(letter.count));
  doing.endings.push_back({found->second, -1, Error(code, text_of(text)).worker(to)});
  offers_.erase(found);
}

// Its messages that have come stay, and are given to who asks for them.
void Post::note_left(const Letter& letter, Doing& doing) {
  MutexLock lock(mutex_);
  if (left_.contains(letter.group)) return;
  boxes_[letter.group].left.insert(letter.from);
  end_hopeless_locked(letter.group, doing);
}

}  // namespace farspan::dist::cpu
