#include <farspan/c10d/backends/cpu/post/line.h>

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/batch.h>

namespace farspan::dist::cpu {
namespace {

// A letter with its bytes fits, and the beginning of more.
constexpr size_t kStaging = 2 * (sizeof(Letter) + kEagerBytes);
// So that one busy line does not keep the others waiting.
constexpr int kReadsPerTurn = 16;
constexpr int kPartsPerTurn = 16;
constexpr size_t kDiscard = 64 << 10;

Error lost(const transport::IoResult& result) {
  if (result.status == transport::IoStatus::kClosed) {
    return Error(Code::kDisconnected, "the connection was closed by the other side");
  }
  return Error(Code::kDisconnected,
               std::string("the connection failed: ") + std::strerror(result.error));
}

// Of TCP: what the other host has not got.
bool has_unsent(int socket) noexcept {
  int domain = 0, bytes = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain == AF_UNIX) {
    return false;
  }
  return ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

Line::Line(net::Reactor& reactor, std::weak_ptr<LineOwner> owner, bool dialled)
    : reactor_(reactor), owner_(std::move(owner)), dialled_(dialled), staging_(kStaging) {}

void Line::open(std::unique_ptr<transport::Stream> stream) {
  {
    MutexLock lock(writing_);
    if (state_ == State::kEnded) return;
    stream_ = std::move(stream);
  }
  attachable_ = stream_->peer_process();
  reactor_.add(shared_from_this());
  State opening = State::kOpening;
  if (!state_.compare_exchange_strong(opening, State::kOpen)) {  // close() came in between
    reactor_.remove(*this);
    return stream_->shut();
  }
  {
    MutexLock lock(writing_);
    may_write_ = state_ == State::kOpen;  // only now: who writes may have to wait by the reactor
  }
  opened_.notify_all();
  write_on();
  tell_news();
}

void Line::close() noexcept {
  const State before = state_.exchange(State::kEnded);
  if (before == State::kEnded) return;
  {
    MutexLock lock(writing_);
    may_write_ = false;
    small_.clear();
    part_.reset();
    outgoing_.clear();
  }
  opened_.notify_all();
  if (before == State::kOpening) return;
  reactor_.remove(*this);
  stream_->shut();
}

void Line::end(const Error& why) noexcept {
  if (state_ == State::kEnded) return;
  close();
  if (const auto owner = owner_.lock()) owner->on_end(*this, why);
}

void Line::forbid_attach(int error) noexcept {
  if (attachable_.exchange(0) == 0) return;
  log(LogLevel::kInfo, "c10d/backends/cpu",
      "messages of rank " + std::to_string(peer()) + " come through its line: its memory " +
          "cannot be read here: " + std::strerror(error));
}

// Once: another one that comes later is written on by the reactor.
void Line::set_way_back(std::shared_ptr<Line> line) noexcept {
  MutexLock lock(writing_);
  if (has_way_back_) return;
  way_back_ = std::move(line);
  has_way_back_ = true;
}

bool Line::take_room(uint64_t bytes) noexcept {
  if (unclaimed_.fetch_add(bytes) + bytes <= kUnclaimedBytes) return true;
  unclaimed_.fetch_sub(bytes);
  return false;
}

// Told in large steps: a sender without room offers what it has, and needs no word then.
void Line::claim(uint64_t bytes) noexcept {
  if (claimed_.fetch_add(bytes) + bytes < kUnclaimedBytes / 4) return;
  Letter letter;
  letter.kind = Letter::kClaimed;
  letter.count = claimed_.exchange(0);
  if (letter.count > 0) post(letter);
}

// Reading.

transport::IoResult Line::read_some() {
  if (staged() == 0) staged_begin_ = staged_end_ = 0;
  if (staged_begin_ > 0 && data_left_ == 0) {
    std::memmove(staging_.data(), staging_.data() + staged_begin_, staged());
    staged_end_ -= std::exchange(staged_begin_, 0);
  }
  iovec places[2] = {{}, {staging_.data() + staged_end_, staging_.size() - staged_end_}};
  if (data_left_ == 0) return stream_->read(places + 1, 1);
  const auto read_to = [&](std::byte* place) {
    static thread_local std::array<std::byte, kDiscard> discarded;
    if (!place) {
      places[0] = {discarded.data(), std::min<size_t>(data_left_, kDiscard)};
      return stream_->read(places, 1);
    }
    places[0] = {place, data_left_};
    return stream_->read(places, 2);
  };
  return filling_ ? filling_->write_at(data_at_, read_to) : read_to(nullptr);
}

void Line::begin_data(LineOwner& owner, const Letter& letter) {
  filling_ = owner.find(*this, letter.offer);
  if (filling_ &&
      (letter.offset > filling_->size() || letter.bytes > filling_->size() - letter.offset)) {
    throw Error(Code::kCorrupt, "a part of a message lies outside of it");
  }
  data_offer_ = letter.offer;
  data_at_ = letter.offset;
  data_left_ = letter.bytes;
}

// They lie where they belong.
void Line::data_came(LineOwner& owner, size_t bytes, std::vector<Ending>& endings) {
  data_at_ += bytes;
  data_left_ -= bytes;
  if (filling_ && filling_->came(bytes)) owner.on_filled(*this, data_offer_, endings);
  if (data_left_ == 0) filling_.reset();
}

// Understands what is staged, as far as it goes.
void Line::take_in(LineOwner& owner, std::vector<Ending>& endings) {
  while (true) {
    const std::byte* const from = staging_.data() + staged_begin_;
    if (data_left_ > 0) {
      const size_t bytes = std::min<uint64_t>(staged(), data_left_);
      if (bytes == 0) return;
      if (filling_) {
        filling_->write_at(data_at_, [&](std::byte* place) {
          if (place) std::memcpy(place, from, bytes);
        });
      }
      staged_begin_ += bytes;
      data_came(owner, bytes, endings);
      continue;
    }
    if (staged() < sizeof(Letter)) return;
    Letter letter;
    std::memcpy(&letter, from, sizeof letter);
    if (letter.magic != Letter::kMagic) throw Error(Code::kCorrupt, "no letter");
    if (letter.kind == Letter::kData) {
      staged_begin_ += sizeof letter;
      begin_data(owner, letter);
      if (letter.bytes == 0) data_came(owner, 0, endings);
      continue;
    }
    if (letter.bytes > kEagerBytes) throw Error(Code::kCorrupt, "a letter is too large");
    if (staged() < sizeof letter + letter.bytes) return;
    staged_begin_ += sizeof letter + letter.bytes;
    owner.on_letter(*this, letter, {from + sizeof letter, letter.bytes}, endings);
  }
}

bool Line::pump(net::Role& role) noexcept {
  const auto keep = shared_from_this();
  const auto owner = owner_.lock();
  if (!owner || state_ != State::kOpen) return false;
  std::vector<Ending> endings;
  std::optional<Error> failure;
  bool moved = false;
  try {
    for (int turn = 0; turn < kReadsPerTurn && endings.empty() && !failure; ++turn) {
      const bool is_data = data_left_ > 0 && staged() == 0;
      const transport::IoResult result = read_some();
      if (result.status == transport::IoStatus::kWouldBlock) break;
      if (result.status != transport::IoStatus::kOk) {
        failure = lost(result);
        break;
      }
      moved = true;
      const size_t data = is_data ? std::min<uint64_t>(result.bytes, data_left_) : 0;
      staged_end_ += result.bytes - data;
      if (data > 0) data_came(*owner, data, endings);
      take_in(*owner, endings);
    }
  } catch (const Error& error) {
    failure = error;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kOverloaded, "no memory for a message that came in");
  }
  if (!moved && !failure) return false;
  role.release();
  net::Batch(
      reactor_.timers(), std::move(endings), [](Ending&& ending) { ending.tell(); }, [] {})
      .run();
  if (failure) end(*failure);
  return true;
}

// Writing.

bool Line::has_left_locked() const {
  return small_done_ < small_.size() || part_ || !outgoing_.empty();
}

int64_t Line::move_locked(const iovec* pieces, int count) {
  const transport::IoResult result = stream_->write(pieces, count);
  if (result.status == transport::IoStatus::kOk) return static_cast<int64_t>(result.bytes);
  return result.status == transport::IoStatus::kWouldBlock ? 0 : -1;
}

bool Line::post(Letter letter, std::span<const std::byte> rest) noexcept {
  letter.bytes = rest.size();
  const std::span<const std::byte> head(reinterpret_cast<const std::byte*>(&letter), sizeof letter);
  bool intact = true, left = false;
  try {
    MutexLock lock(writing_);
    if (state_ == State::kEnded) return false;
    size_t moved = 0;
    if (may_write_ && !has_left_locked()) {
      const iovec pieces[2] = {{&letter, sizeof letter},
                               {const_cast<std::byte*>(rest.data()), rest.size()}};
      const int64_t result = move_locked(pieces, rest.empty() ? 1 : 2);
      intact = result >= 0;
      moved = intact ? static_cast<size_t>(result) : 0;
    }
    if (moved < head.size()) append(small_, head.subspan(moved));
    const size_t of_rest = moved - std::min(moved, head.size());
    if (of_rest < rest.size()) append(small_, rest.subspan(of_rest));
    left = may_write_ && has_left_locked();
    has_left_ = has_left_locked();
  } catch (const std::bad_alloc&) {
    intact = false;  // the next letter would be read as the rest of this one
  }
  after_writing(intact, left);
  return true;
}

void Line::add(std::shared_ptr<Sending> sending) {
  MutexLock lock(writing_);
  if (state_ == State::kEnded) return;
  outgoing_.push_back(std::move(sending));
  has_left_ = true;
}

void Line::write_on() noexcept {
  if (flush_own()) reactor_.flush_when_writable(*this);
}

// The front message's next part; the messages take turns.
bool Line::next_part_locked() {
  while (!outgoing_.empty()) {
    std::shared_ptr<Sending> next = std::move(outgoing_.front());
    outgoing_.pop_front();
    const auto range = next->next_part(kPartBytes);
    if (!range) continue;  // other lines have the rest
    Part part{};
    part.letter.kind = Letter::kData;
    part.letter.group = next->group;
    part.letter.offer = next->id;
    part.letter.offset = range->begin;
    part.letter.bytes = range->size;
    part.data = next->data.data + range->begin;
    part.of = next;
    part_ = std::move(part);
    outgoing_.push_back(std::move(next));
    return true;
  }
  return false;
}

bool Line::write_locked() {
  for (int parts = 0; may_write_ && parts < kPartsPerTurn;) {
    const bool in_part = part_ && part_->done > 0;
    if (!in_part && small_done_ < small_.size()) {
      const iovec piece{small_.data() + small_done_, small_.size() - small_done_};
      const int64_t moved = move_locked(&piece, 1);
      if (moved <= 0) return moved == 0;
      small_done_ += static_cast<size_t>(moved);
      if (small_done_ < small_.size()) return true;
      small_.clear();
      small_done_ = 0;
      continue;
    }
    if (!part_ && !next_part_locked()) return true;
    Part& part = *part_;
    const size_t of_head = std::min(part.done, sizeof part.letter);
    const size_t of_data = part.done - of_head;
    const iovec pieces[2] = {
        {reinterpret_cast<std::byte*>(&part.letter) + of_head, sizeof part.letter - of_head},
        {const_cast<std::byte*>(part.data) + of_data, part.letter.bytes - of_data}};
    const bool head_done = of_head == sizeof part.letter;
    const int64_t moved = move_locked(head_done ? pieces + 1 : pieces, head_done ? 1 : 2);
    if (moved < 0 || (moved == 0 && part.done < sizeof part.letter + part.letter.bytes)) {
      return moved == 0;
    }
    part.done += static_cast<size_t>(moved);
    if (part.done < sizeof part.letter + part.letter.bytes) continue;
    ++parts;
    if (part.of && part.of->left(part.letter.bytes)) {
      sent_.push_back(std::move(part.of));
      has_sent_ = true;
    }
    part_.reset();
  }
  return true;
}

void Line::give_up(const Sending& sending) noexcept {
  MutexLock lock(writing_);
  std::erase_if(outgoing_, [&](const auto& one) { return one.get() == &sending; });
  if (!part_ || part_->of.get() != &sending) return;
  if (part_->done == 0) return part_.reset();
  try {  // what has begun must be finished, or nothing could follow
    part_->copy.assign(part_->data, part_->data + part_->letter.bytes);
    part_->data = part_->copy.data();
    part_->of.reset();
  } catch (const std::bad_alloc&) {
    may_write_ = false;
    stream_->shut();
  }
}

bool Line::flush() noexcept {
  if (has_way_back_ && way_back_->has_left_) way_back_->flush_own();  // the reactor does, too
  return has_left_ && flush_own();
}

bool Line::flush_own() noexcept {
  if (state_ != State::kOpen) return false;
  if (!writing_.try_lock()) return true;
  bool intact = true;
  try {
    intact = write_locked();
  } catch (const std::bad_alloc&) {
    intact = false;
  }
  const bool left = intact && may_write_ && has_left_locked();
  has_left_ = has_left_locked();
  writing_.unlock();
  after_writing(intact, false);
  return left;
}

void Line::after_writing(bool intact, bool left) noexcept {
  if (!intact) {
    {
      MutexLock lock(writing_);
      may_write_ = false;
    }
    // What the other side wrote before it closed is read first; who reads the end, ends the line.
    if (stream_) stream_->shut();
  } else if (left) {
    reactor_.flush_when_writable(*this);
  }
}

void Line::tell_own() noexcept {
  if (!has_sent_) return;
  std::vector<std::shared_ptr<Sending>> sent;
  {
    MutexLock lock(writing_);
    sent.swap(sent_);
    has_sent_ = false;
  }
  const auto owner = owner_.lock();
  for (const auto& sending : sent) {
    if (owner) owner->on_sent(*sending);
  }
}

void Line::tell_news() noexcept {
  tell_own();
  if (has_way_back_) way_back_->tell_own();
}

void Line::drain(Deadline deadline) noexcept {
  while (!deadline.expired()) {
    {
      MutexLock lock(writing_);
      while (state_ == State::kOpening && opened_.wait_until(writing_, deadline)) {
      }
      if (!may_write_) return;
      if (!has_left_locked()) break;
    }
    flush_own();
    if (!stream_->expect_room()) continue;
    pollfd room{stream_->write_descriptor(), POLLOUT, 0};
    poll(&room, 1, deadline.poll_ms());
  }
  // A connection over the network that is closed with unread letters of the other side drops what
  // the kernel has not sent yet.
  while (!deadline.expired() && has_unsent(stream_->write_descriptor())) {
    std::this_thread::sleep_for(Millis(1));
  }
}

}  // namespace farspan::dist::cpu
