// Messages: how they are sent, and find who asked for them.
#include <farspan/c10d/backends/cpu/post/post.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/cpu/post/waiting.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/batch.h>
#include <farspan/c10d/transport/shm/shm_transport.h>
#include <farspan/c10d/transport/tcp/tcp_transport.h>

namespace farspan::dist::cpu {
namespace {

constexpr std::chrono::seconds kDialTime{30};
// What a message counts for beside its bytes, so that many small ones are limited, too.
constexpr uint64_t kMessageOverhead = 64;

Letter letter_of(Letter::Kind kind, uint64_t group, const messages::Envelope& envelope) {
  Letter letter;
  letter.kind = kind;
  letter.group = group;
  letter.type = static_cast<uint8_t>(envelope.type);
  letter.from = envelope.from;
  letter.tag = envelope.tag;
  letter.count = envelope.count;
  letter.is_announced = envelope.is_announced ? 1 : 0;
  return letter;
}

Future<int> make_failed(const Error& why) {
  const Promise<int> promise;
  promise.set_error(why);
  return promise.future();
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

Post::Post(std::shared_ptr<net::Reactor> reactor, const std::shared_ptr<net::Loop>& loop)
    : reactor_(std::move(reactor)),
      shm_(transport::make_shm_transport(loop, *reactor_)),
      tcp_(transport::make_tcp_transport(loop, *reactor_)) {}

PostAddress Post::listen() {
  std::random_device random;
  token_ = (uint64_t{random()} << 32) | random();
  listener_ = listen_by(*shm_, "");
  return {listener_->endpoint(), token_};
}

std::string Post::listen_to_hosts(const std::string& bind_host) {
  hosts_listener_ = listen_by(*tcp_, bind_host);
  return hosts_listener_->endpoint();
}

std::unique_ptr<transport::Listener> Post::listen_by(transport::Transport& transport,
                                                     const std::string& bind_host) {
  return transport.listen(bind_host, [weak = weak_from_this()](auto stream) {
    if (const auto self = weak.lock()) self->add_visitor(std::move(stream));
  });
}

void Post::open(PostWorld world) {
  world_ = std::move(world);
  std::vector<std::unique_ptr<transport::Stream>> early;
  {
    MutexLock lock(mutex_);
    opened_ = true;
    early.swap(early_);
  }
  for (auto& stream : early) add_visitor(std::move(stream));
}

const std::string& Post::name_of(int rank) const { return world_.names[static_cast<size_t>(rank)]; }

Error Post::gone(int rank) const { return gone_error(name_of(rank)); }

void Post::add_visitor(std::unique_ptr<transport::Stream> stream) {
  const auto line = std::make_shared<Line>(*reactor_, weak_from_this(), false);
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    if (!opened_) return early_.push_back(std::move(stream));
    visitors_.push_back(line);
  }
  line->open(std::move(stream));
}

// Its first letter waits on it before another thread finds it.
std::shared_ptr<Line> Post::make_line_locked(int rank) {
  auto line = std::make_shared<Line>(*reactor_, weak_from_this(), true);
  line->set_peer(rank);
  if (stopped_) {
    line->close();
    return line;
  }
  Letter hello;
  hello.from = world_.rank;
  hello.offer = world_.addresses[static_cast<size_t>(rank)].token;
  line->post(hello);
  return line;
}

std::shared_ptr<Line> Post::line_to(int rank) {
  std::shared_ptr<Line> line;
  {
    MutexLock lock(mutex_);
    const auto found = lines_.find(rank);
    if (found != lines_.end()) return found->second;
    line = make_line_locked(rank);
    if (stopped_) return line;
    lines_.emplace(rank, line);
    if (const auto visitor = visitor_locked(rank)) visitor->set_way_back(line);
  }
  dial(line, rank, [line](const Error& why) { line->end(why); });
  return line;
}

// Of several the first: the others bring only parts.
std::shared_ptr<Line> Post::visitor_locked(int rank) const {
  const auto found = std::find_if(visitors_.begin(), visitors_.end(),
                                  [&](const auto& one) { return one->peer() == rank; });
  return found == visitors_.end() ? nullptr : *found;
}

std::shared_ptr<Line> Post::answers_locked(const std::shared_ptr<Line>& line) const {
  const auto own = lines_.find(line->peer());
  return own != lines_.end() && own->second->is_open() ? own->second : line;
}

std::vector<std::shared_ptr<Line>> Post::lines_for(const Sending& sending) {
  const int rank = sending.rank;
  std::vector<std::shared_ptr<Line>> lines, made;
  {
    MutexLock lock(mutex_);
    const auto own = lines_.find(rank);
    if (own == lines_.end()) return {};  // it has ended, and so will the message
    lines.push_back(own->second);
    if (!world_.is_far[static_cast<size_t>(rank)]) return lines;
    if (sending.envelope.bytes() < world_.stripe_bytes) return lines;
    const auto [begin, end] = stripes_.equal_range(rank);
    for (auto one = begin; one != end; ++one) lines.push_back(one->second);
    while (!stopped_ && lines.size() < world_.stripes) {
      made.push_back(make_line_locked(rank));
      stripes_.emplace(rank, made.back());
      lines.push_back(made.back());
    }
  }
  for (const auto& one : made) dial_stripe(one, rank);
  return lines;
}

std::vector<std::shared_ptr<Line>> Post::all_lines_locked(int rank) const {
  std::vector<std::shared_ptr<Line>> all;
  const auto found = lines_.find(rank);
  if (found != lines_.end()) all.push_back(found->second);
  const auto [begin, end] = stripes_.equal_range(rank);
  for (auto one = begin; one != end; ++one) all.push_back(one->second);
  return all;
}

void Post::dial(const std::shared_ptr<Line>& line, int rank,
                std::function<void(const Error&)> on_failure) {
  const std::string& endpoint = world_.addresses[static_cast<size_t>(rank)].endpoint;
  transport::Transport& way = shm_->reaches(endpoint) ? *shm_ : *tcp_;
  way.connect(endpoint, Deadline::after(kDialTime),
              [line, on_failure = std::move(on_failure)](
                  std::variant<std::unique_ptr<transport::Stream>, Error> result) {
                if (auto* const stream = std::get_if<0>(&result))
                  return line->open(std::move(*stream));
                on_failure(std::get<1>(result));
              });
}

// Without it the other lines take all.
void Post::dial_stripe(const std::shared_ptr<Line>& line, int rank) {
  dial(line, rank, [weak = weak_from_this(), line](const Error& why) {
    log(LogLevel::kInfo, "c10d/backends/cpu", std::string("one line less: ") + why.what());
    line->close();
    const auto self = weak.lock();
    if (!self) return;
    MutexLock lock(self->mutex_);
    std::erase_if(self->stripes_, [&](const auto& one) { return one.second == line; });
  });
}

// Sending.

std::shared_ptr<Sending> Post::sending_of(uint64_t group, const GroupSpec& spec,
                                          const Message& message, Block data) {
  const uint64_t id = next_offer_.fetch_add(1);
  const int rank = spec.ranks[static_cast<size_t>(message.peer)];
  return std::make_shared<Sending>(shared_from_this(), id, group, rank, token_ + id, spec.rank,
                                   message, data);
}

Future<int> Post::send(uint64_t group, const GroupSpec& spec, const Message& message, Block data) {
  const int rank = spec.ranks[static_cast<size_t>(message.peer)];
  const messages::Envelope envelope{spec.rank, message.tag, message.type, data.count,
                                    message.announced_by != nullptr};
  if (rank == world_.rank) return send_to_itself(group, spec, message, data, envelope);
  const bool may_be_kept = !envelope.is_announced && envelope.bytes() <= kEagerBytes;
  std::optional<Error> why;
  {
    MutexLock lock(mutex_);
    why = why_unsent_locked(group, spec, message.peer);
  }
  if (why) return make_failed(*why);
  const auto line = line_to(rank);
  if (may_be_kept && line->take_room(envelope.bytes() + kMessageOverhead)) {
    const Letter letter = letter_of(Letter::kMessage, group, envelope);
    if (!line->post(letter, {data.data, envelope.bytes()})) return make_failed(gone(rank));
    return make_ready_future(message.peer);
  }
  const auto sending = sending_of(group, spec, message, data);
  MutexLock lock(mutex_);
  why = why_unsent_locked(group, spec, message.peer);  // again: the group may have failed since
  if (!why && !offer_locked(*line, sending)) why = gone(rank);
  if (why) return make_failed(*why);
  return Future<int>(sending);
}

// As to others: a small one is kept at once, so a thread may send and then receive.
Future<int> Post::send_to_itself(uint64_t group, const GroupSpec& spec, const Message& message,
                                 Block data, const messages::Envelope& envelope) {
  std::shared_ptr<Sending> sending;
  Doing doing;
  {
    MutexLock lock(mutex_);
    if (const auto why = why_ended_locked(group)) return make_failed(*why);
    const uint64_t bytes = envelope.bytes() + kMessageOverhead;
    Inbox::Arrived own{envelope, {}};
    const bool may_be_kept = !envelope.is_announced && envelope.bytes() <= kEagerBytes;
    if (may_be_kept && own_unclaimed_ + bytes <= kUnclaimedBytes) {
      own.content.bytes.resize(envelope.bytes());
      copy_bytes(own.content.bytes.data(), data.data, envelope.bytes());
      own_unclaimed_ += bytes;
    } else {
      sending = sending_of(group, spec, message, data);
      own.content.offer = sending->id;
      offers_.emplace(sending->id, sending);
      look_soon_locked();
    }
    Box& box = box_locked(group, spec);
    if (const auto receive = box.inbox.match(envelope)) {
      match_locked(std::move(own), receive, doing);
    } else {
      box.inbox.keep(std::move(own));
    }
  }
  perform_and_tell(doing);
  return sending ? Future<int>(sending) : make_ready_future(message.peer);
}

// Under the lock, so that nobody takes it back before it has left.
bool Post::offer_locked(Line& line, const std::shared_ptr<Sending>& sending) {
  Letter letter = letter_of(Letter::kOffer, sending->group, sending->envelope);
  letter.offer = sending->id;
  const bool may_attach = !world_.is_far[static_cast<size_t>(sending->rank)] &&
                          sending->envelope.bytes() >= world_.attach_bytes;
  const Origin origin = sending->origin();
  if (!line.post(letter, std::as_bytes(std::span(&origin, may_attach ? 1 : 0)))) return false;
  offers_.emplace(sending->id, sending);
  look_soon_locked();
  return true;
}

void Post::on_sent(const Sending& sending) {
  std::shared_ptr<Sending> done;
  {
    MutexLock lock(mutex_);
    const auto found = offers_.find(sending.id);
    if (found == offers_.end()) return;
    done = std::move(found->second);
    offers_.erase(found);
  }
  done->set_value(done->message.peer);
}

// Receiving.

Future<int> Post::recv(uint64_t group, const GroupSpec& spec, const Message& message, Block data) {
  const int from = message.peer < 0 ? -1 : spec.ranks[static_cast<size_t>(message.peer)];
  const auto receive = std::make_shared<Waiting>(shared_from_this(), group, from, message, data);
  Doing doing;
  {
    MutexLock lock(mutex_);
    Box& box = box_locked(group, spec);
    if (auto found = box.inbox.post(receive)) {
      match_locked(std::move(*found), receive, doing);
    } else if (auto why = why_none_locked(group, *receive, doing)) {
      box.inbox.withdraw(*receive);
      doing.endings.push_back({receive, -1, std::move(why)});
      if (message.peer < 0) note_told_locked(box);
    } else {
      look_soon_locked();
    }
  }
  perform_and_tell(doing);
  return Future<int>(receive);
}

// A message and the receive that takes it, neither of which is in the inbox any more.
void Post::match_locked(Inbox::Arrived message, const std::shared_ptr<Receive>& receive,
                        Doing& doing) {
  const messages::Envelope& envelope = message.envelope;
  Content& content = message.content;
  std::optional<Error> mismatch;
  if (!receive->takes(envelope)) {
    const int sender = content.line ? content.line->peer() : world_.rank;
    mismatch = receive->refusal(envelope, name_of(sender), name_of(world_.rank));
  }
  const bool is_own = content.offer != 0 && !content.line;
  std::shared_ptr<Sending> own;
  if (is_own) {
    const auto found = offers_.find(content.offer);
    own = std::move(found->second);
    offers_.erase(found);
  }
  if (content.offer == 0) claim_locked(content.line, envelope.bytes(), doing);
  if (mismatch) {
    if (own) {
      doing.endings.push_back({own, -1, mismatch});
    } else if (content.offer != 0) {
      doing.replies.push_back(refusal_of(content.line, content.offer, *mismatch));
    }
    doing.endings.push_back({receive, -1, std::move(mismatch)});
  } else if (own) {
    doing.copies.push_back({std::move(own), {}, envelope.from, receive});
  } else if (content.offer == 0) {
    doing.copies.push_back({nullptr, std::move(content.bytes), envelope.from, receive});
  } else {
    const auto filling = std::make_shared<Filling>(receive, envelope.from);
    fillings_.emplace(FillingKey(content.line->peer(), content.offer), filling);
    if (content.origin && content.line->attachable() != 0) {
      doing.pulls.push_back(
          std::make_shared<Pull>(content.line, content.offer, *content.origin, filling));
      static_cast<Waiting&>(*receive).pull = doing.pulls.back();
      return;
    }
    Letter letter;
    letter.kind = Letter::kAccept;
    letter.offer = content.offer;
    doing.replies.push_back({answers_locked(content.line), letter, {}});
  }
}

void Post::claim_locked(const std::shared_ptr<Line>& line, uint64_t bytes, Doing& doing) {
  if (line) {
    doing.claims.emplace_back(line, bytes + kMessageOverhead);
  } else {
    own_unclaimed_ -= bytes + kMessageOverhead;
  }
}

void Post::perform(Doing& doing) {
  for (auto& one : doing.copies) {
    const std::byte* const from = one.from ? one.from->data.data : one.bytes.data();
    copy_bytes(one.to->place.data, from, one.to->bytes());
    doing.endings.push_back({one.to, one.sender});
    if (one.from) doing.endings.push_back({one.from, one.from->message.peer});
  }
  for (const auto& [line, letter, text] : doing.replies) {
    line->post(letter, std::as_bytes(std::span(text)));
  }
  for (const auto& [line, bytes] : doing.claims) line->claim(bytes);
  for (const int rank : doing.unexplained) world_.ask_fate(rank);
  for (auto& one : doing.pulls) {
    if (one->is_large()) {
      pull_by_threads(one);
    } else {
      doing.endings.push_back({.future = nullptr, .go_on = [self = shared_from_this(), one] {
                                 self->pull(one, Deadline::never());
                               }});
    }
  }
}

void Post::perform_and_tell(Doing& doing) noexcept {
  perform(doing);
  // Others go on where one of them blocks.
  net::Batch(
      reactor_->timers(), std::move(doing.endings), [](Ending&& ending) { ending.tell(); }, [] {})
      .run();
}

Post::Box& Post::box_locked(uint64_t group, const GroupSpec& spec) {
  Box& box = boxes_[group];
  if (box.ranks.empty()) box.ranks = spec.ranks;
  return box;
}

std::optional<Error> Post::why_unsent_locked(uint64_t group, const GroupSpec& spec,
                                             int place) const {
  if (auto why = why_ended_locked(group)) return why;
  const int rank = spec.ranks[static_cast<size_t>(place)];
  const auto box = boxes_.find(group);
  if (box == boxes_.end() || box->second.ranks.empty()) {
    return gone_.contains(rank) ? std::optional(gone(rank)) : std::nullopt;
  }
  if (!is_absent_locked(box->second, place)) return std::nullopt;
  return absent_locked(box->second, place);
}

std::optional<Error> Post::why_ended_locked(uint64_t group) const {
  if (stopped_ || left_.contains(group)) {
    return left_error();
  }
  const auto failed = failed_.find(group);
  if (failed == failed_.end()) return std::nullopt;
  return failed->second;
}

bool Post::has_left_locked(const Box& box, int rank) const {
  return box.left.contains(rank) || has_left_job_locked(rank);
}

bool Post::has_left_job_locked(int rank) const {
  const auto fate = fates_.find(rank);
  return fate != fates_.end() && fate->second == Fate::kLeft;
}

bool Post::is_absent_locked(const Box& box, int place) const {
  const int rank = box.ranks[static_cast<size_t>(place)];
  return box.left.contains(rank) || gone_.contains(rank);
}

// That it has left says more than that its process is gone since.
Error Post::absent_locked(const Box& box, int place) const {
  const int rank = box.ranks[static_cast<size_t>(place)];
  if (!has_left_locked(box, rank)) return gone(rank);
  return left_error(name_of(rank));
}

// Why nothing more can come for it.
std::optional<Error> Post::why_none_locked(uint64_t group, const Receive& receive, Doing& doing) {
  if (auto why = why_ended_locked(group)) return why;
  const Box& box = boxes_.at(group);
  const int from = receive.wanted.peer;
  if (from >= 0) {
    return is_absent_locked(box, from) ? std::optional(absent_locked(box, from)) : std::nullopt;
  }
  if (!is_explained_locked(box, doing)) return std::nullopt;
  if (const auto place = untold_death_locked(box)) return absent_locked(box, *place);
  size_t absent = 0;
  for (size_t place = 0; place < box.ranks.size(); ++place) {
    absent += is_absent_locked(box, static_cast<int>(place)) ? 1 : 0;
  }
  if (absent == 0 || absent + 1 < box.ranks.size()) return std::nullopt;
  return Error(Code::kDisconnected, "all other ranks have left the group");
}

bool Post::is_explained_locked(const Box& box, Doing& doing) {
  bool all = true;
  for (const int rank : box.ranks) {
    if (!gone_.contains(rank) || box.left.contains(rank)) continue;
    const auto [fate, is_new] = fates_.emplace(rank, Fate::kAsked);
    if (is_new) doing.unexplained.push_back(rank);
    all &= fate->second != Fate::kAsked;
  }
  return all;
}

std::optional<int> Post::untold_death_locked(const Box& box) const {
  for (size_t at = 0; at < box.ranks.size(); ++at) {
    const auto place = static_cast<int>(at);
    if (!gone_.contains(box.ranks[at]) || has_left_locked(box, box.ranks[at])) continue;
    if (!box.told.contains(place)) return place;
  }
  return std::nullopt;
}

void Post::note_told_locked(Box& box) {
  if (const auto place = untold_death_locked(box)) box.told.insert(*place);
}

}  // namespace farspan::dist::cpu
