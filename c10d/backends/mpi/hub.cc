#include <farspan/c10d/backends/mpi/hub.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/late.h>
#include <farspan/c10d/backends/messages/told_error.h>
#include <farspan/c10d/backends/mpi/pause.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/host.h>

namespace farspan::dist::mpi {
namespace {

void append(std::string& list, int rank) {
  list += (list.empty() ? "" : ", ") + std::to_string(rank);
}

}  // namespace

Hub::Hub(MPI_Comm ranks) : wire_(ranks), mail_(*this, wire_) {
  rank_ = wire_.rank();
  size_ = wire_.size();
  for (const Kind word : {Kind::kHello, Kind::kBye}) {
    words_[word].heard.resize(static_cast<size_t>(wire_.size()));
  }
  for (int rank = 0; rank < size_; ++rank) names_.push_back("rank " + std::to_string(rank));
}

void Hub::check_open_locked() const {
  if (broken_) throw *broken_;
}

std::string Hub::exchange(Kind word, uint64_t number, Deadline deadline, Micros longest_pause) {
  {
    MutexLock lock(mutex_);
    check_open_locked();
    Header header;
    header.kind = word;
    header.number = number;
    const std::string own = net::process_name();
    for (int rank = 0; rank < wire_.size() && words_[word].said < number; ++rank) {
      wire_.send(rank, header, std::as_bytes(std::span(own)));
    }
    words_[word].said = number;
  }
  for (Pause pause(longest_pause);;) {
    Endings endings;
    std::string missing;
    bool came = false;
    {
      MutexLock lock(mutex_);
      check_open_locked();
      came = poll_locked(endings);
      const auto& heard = words_[word].heard;
      for (size_t rank = 0; rank < heard.size(); ++rank) {
        if (heard[rank] < number) append(missing, static_cast<int>(rank));
      }
    }
    tell(endings);
    if (missing.empty() || deadline.expired()) return missing;
    if (!came) pause.take();
  }
}

GroupSpec Hub::meet(Deadline deadline) {
  GroupSpec spec;
  uint64_t start = 0;
  {
    MutexLock lock(mutex_);
    start = starts_ + 1;
  }
  spec.rank = rank_;
  for (int rank = 0; rank < size_; ++rank) spec.ranks.push_back(rank);
  const std::string missing = exchange(Kind::kHello, start, deadline, Millis(1));
  if (!missing.empty()) {
    timed_out_ = true;
    throw Error(Code::kTimeout,
                "rank " + missing + " of " + std::to_string(spec.size()) + " did not come in time")
        .worker("rank " + missing)
        .advice("each rank that mpirun has started must call it");
  }
  MutexLock lock(mutex_);
  starts_ = start;
  spec.name = "mpi." + std::to_string(start);
  return spec;
}

std::string Hub::say_bye(Deadline deadline) {
  return exchange(Kind::kBye, 1, deadline, Millis(10));
}

std::shared_ptr<Room> Hub::room_locked(uint64_t id) {
  auto& room = rooms_[id];
  if (!room) {
    room = std::make_shared<Room>();
    room->id = id;
  }
  return room;
}

std::shared_ptr<Room> Hub::open(const GroupSpec& spec) {
  MutexLock lock(mutex_);
  const auto room = room_locked(spec.id());
  room->spec = spec;
  room->names.clear();
  for (const int rank : spec.ranks) room->names.push_back(names_[static_cast<size_t>(rank)]);
  return room;
}

void Hub::wait(Room& room, Deadline deadline, TimePoint since, const IsMissing& is_missing,
               bool have_met) {
  for (Pause pause;;) {
    Endings endings;
    std::optional<Error> why;
    std::string missing;
    bool came = false;
    {
      MutexLock lock(mutex_);
      came = poll_locked(endings);
      try {
        if (room.is_left) throw left_error();
        if (room.has_failed()) throw *room.failure;
        check_open_locked();
        for (int rank = 0; rank < room.spec.size(); ++rank) {
          if (rank == room.spec.rank || !is_missing(rank, wire_)) continue;
          if (room.left.contains(rank)) throw room.has_left(rank);
          missing += (missing.empty() ? "" : ", ") + room.name_of(rank);
        }
      } catch (const Error& error) {
        why = error;
      }
    }
    tell(endings);
    if (why) throw *why;
    if (missing.empty()) return;
    if (deadline.expired()) {
      timed_out_ = true;
      throw late_error(room.name_of(room.spec.rank), since, missing, have_met);
    }
    came ? pause.reset() : pause.take();
  }
}

// What this rank has sent last may need help to leave.
void Hub::finish(Room& room) noexcept {
  Endings endings;
  {
    MutexLock lock(mutex_);
    room.streams.clear();
    room.ready.clear();
    try {
      if (!broken_) wire_.tidy();
    } catch (const Error& error) {
      break_locked(error, endings);
    }
    call_thread_locked();
  }
  tell(endings);
}

Future<int> Hub::send(Room& room, const Message& message, Block data) {
  MutexLock lock(mutex_);
  try {
    check_open_locked();
    Future<int> sent = mail_.send(room, message, data);
    call_thread_locked();
    return sent;
  } catch (const Error& error) {
    return make_error_future<int>(error);
  }
}

Future<int> Hub::recv(Room& room, const Message& message, Block data) {
  const auto receive = std::make_shared<Receiving>(*this, message, data);
  Endings endings;
  {
    MutexLock lock(mutex_);
    try {
      check_open_locked();
      poll_locked(endings);
      mail_.post(room, receive, endings);
      call_thread_locked();
    } catch (const Error& error) {
      endings.push_back({receive, -1, error});
    }
  }
  tell(endings);
  return Future<int>(receive);
}

bool Hub::wait(FutureCore& message, Deadline deadline, Deadline own) {
  // A thread of a worker's has other things to do meanwhile; the hub's own does this.
  if (Waiter* const waiter = current_waiter()) {
    return waiter->wait(message, deadline);
  }
  const CallbackPause callbacks;
  for (Pause pause;;) {
    if (message.ready()) return true;
    if (deadline.expired()) return false;
    Endings endings;
    bool came = false;
    {
      MutexLock lock(mutex_);
      came = poll_locked(endings);
      if (own.expired()) expire_locked(endings);
    }
    came = came || !endings.empty();
    tell(endings);
    came ? pause.reset() : pause.take();
  }
}

void Hub::end_hopeless_locked(Room& room, Endings& endings) {
  mail_.end_hopeless(
      room, [&room](int rank) { return room.why_none(rank); }, endings);
}

// False where the failure of an earlier call is known, or another one of this.
bool Hub::fail_locked(Room& room, const Error& why, uint64_t since, Endings& endings) {
  if (room.failure && room.failed_since <= since) return false;
  room.failure = why;
  room.failed_since = since;
  end_hopeless_locked(room, endings);
  return true;
}

// Nothing goes through MPI any more.
void Hub::break_locked(const Error& why, Endings& endings) {
  if (broken_) return;
  broken_ = why;
  log(why.code() == Code::kShutdown ? LogLevel::kDebug : LogLevel::kError, "c10d/mpi", why.what());
  for (const auto& [id, room] : rooms_) {
    room->failure = room->failure.value_or(why);
    room->failed_since = 0;
    for (auto& receive : room->inbox.posted()) {
      room->inbox.withdraw(*receive);
      endings.push_back({std::move(receive), -1, why});
    }
  }
  mail_.end_all(why, endings);
}

void Hub::tell_all_locked(const Room& room, Kind kind, uint64_t number,
                          std::span<const std::byte> content) {
  Header header;
  header.number = number;
  header.group = room.id;
  header.from = room.spec.rank;
  header.kind = kind;
  for (const int rank : room.spec.ranks) {
    if (rank != wire_.rank()) wire_.send(rank, header, content);
  }
}

void Hub::fail(Room& room, const Error& why, uint64_t since) noexcept {
  Endings endings;
  {
    MutexLock lock(mutex_);
    // What ends after this rank has left is no failure of the others'.
    if (room.is_left) return;
    try {
      if (!fail_locked(room, why, since, endings)) return;
      const std::string told = messages::ToldError::of(why).text();
      if (!broken_) tell_all_locked(room, Kind::kFailure, since, std::as_bytes(std::span(told)));
    } catch (const Error& error) {
      break_locked(error, endings);
    }
  }
  tell(endings);
}

void Hub::leave(Room& room) noexcept {
  Endings endings;
  {
    MutexLock lock(mutex_);
    if (room.is_left) return;
    room.is_left = true;
    rooms_.erase(room.id);
    left_.insert(room.id);
    try {
      if (!broken_) {
        end_hopeless_locked(room, endings);
        mail_.drop_arrived(room);
        tell_all_locked(room, Kind::kLeft, 0, {});
        call_thread_locked();
      }
    } catch (const Error& error) {
      break_locked(error, endings);
    }
  }
  tell(endings);
}

}  // namespace farspan::dist::mpi
