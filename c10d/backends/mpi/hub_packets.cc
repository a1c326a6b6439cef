// What comes in, and the thread that takes it in while nobody waits.
#include <utility>

#include <farspan/c10d/backends/messages/told_error.h>
#include <farspan/c10d/backends/mpi/hub.h>
#include <farspan/c10d/backends/mpi/pause.h>

namespace farspan::dist::mpi {
namespace {

constexpr int kMostAtOnce = 64;  // packets; others want the lock, too

}  // namespace

// Whether something came.
bool Hub::poll_locked(Endings& endings) {
  if (broken_) return false;
  int packets = 0;
  try {
    wire_.tidy();
    while (packets < kMostAtOnce) {
      auto packet = wire_.receive();
      if (!packet) break;
      ++packets;
      take_locked(std::move(*packet), endings);
    }
    mail_.advance(endings);
  } catch (const Error& error) {
    break_locked(error, endings);
  }
  return packets > 0;
}

void Hub::take_locked(Packet packet, Endings& endings) {
  const Header& header = packet.header;
  if (header.kind == Kind::kHello || header.kind == Kind::kBye) {
    const auto rank = static_cast<size_t>(packet.rank);
    words_[header.kind].heard[rank] = header.number;
    const auto name = packet.content();
    names_[rank] = "rank " + std::to_string(packet.rank) + " (" +
                   std::string(reinterpret_cast<const char*>(name.data()), name.size()) + ")";
    return;
  }
  if (header.kind == Kind::kClaimed) return mail_.give_room(packet.rank, header.number);
  if (left_.contains(header.group)) return mail_.drop(packet);
  const auto room = room_locked(header.group);
  try {
    take_of_room_locked(*room, std::move(packet), endings);
  } catch (const Error& error) {
    fail_locked(*room, error, 0, endings);
  }
}

void Hub::take_of_room_locked(Room& room, Packet packet, Endings& endings) {
  const Header header = packet.header;
  const auto from = static_cast<size_t>(header.from);
  switch (header.kind) {
    case Kind::kEnter:
      room.entered[header.from].push_back(std::move(packet));
      return;
    case Kind::kData:
      if (from < room.streams.size()) {
        room.streams[from][static_cast<size_t>(header.channel)].pour(packet.content());
      }
      return;
    case Kind::kReady:
      if (from < room.ready.size()) room.ready[from] = header.number;
      return;
    case Kind::kFailure:
      fail_locked(room, messages::ToldError::from(packet.content()), header.number, endings);
      return;
    case Kind::kLeft:
      room.left.insert(header.from);
      return end_hopeless_locked(room, endings);
    default:
      return mail_.take(room, std::move(packet), endings);
  }
}

void Hub::expire_locked(Endings& endings) {
  if (broken_) return;
  try {
    for (const auto& [id, room] : rooms_) mail_.expire(*room, endings);
  } catch (const Error& error) {
    break_locked(error, endings);
  }
}

bool Hub::needs_thread_locked() const {
  if (broken_) return false;
  if (!wire_.is_idle() || !mail_.is_idle()) return true;
  for (const auto& [id, room] : rooms_) {
    if (!room->inbox.posted().empty()) return true;
  }
  return false;
}

void Hub::call_thread_locked() {
  if (stopped_ || !needs_thread_locked()) return;
  if (!has_thread_) thread_ = std::thread([this] { loop(); });
  has_thread_ = true;
  work_.notify_one();
}

void Hub::loop() noexcept {
  for (Pause pause;;) {
    Endings endings;
    bool came = false;
    {
      MutexLock lock(mutex_);
      while (!stopped_ && !needs_thread_locked()) work_.wait(mutex_);
      if (stopped_) return;
      came = poll_locked(endings);
      expire_locked(endings);
    }
    tell(endings);
    came ? pause.reset() : pause.take();
  }
}

void Hub::close() noexcept {
  Endings endings;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    break_locked(Error(Code::kShutdown, "MPI has ended"), endings);
    work_.notify_all();
    thread = std::move(thread_);
  }
  tell(endings);
  if (thread.joinable()) thread.join();
}

}  // namespace farspan::dist::mpi
