#include <farspan/c10d/backends/fake/fake.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <farspan/c10d/backends/fake/reference.h>

namespace farspan::dist::fake {

// Where the ranks of one group meet.
struct Room {
  explicit Room(std::vector<int> who)
      : ranks(std::move(who)), seats(ranks.size()), taken(ranks.size()) {}

  // All that is under way, and all that comes, ends with the first of these.
  void fail(const Error& why) noexcept;
  // A rank calls nothing more: those that wait for it end, and those that will.
  void leave(int rank) noexcept;

  struct Letter {  // a message that nobody has asked for yet
    int from, to, tag;
    DType type;
    size_t count;
    std::vector<std::byte> bytes;
  };
  class Request;

  const std::vector<int> ranks;  // in the default group
  Mutex mutex;
  CondVar changed;
  std::vector<Seat> seats FARSPAN_GUARDED_BY(mutex);
  std::vector<bool> taken FARSPAN_GUARDED_BY(mutex);  // by those that wait for the others
  uint64_t performed FARSPAN_GUARDED_BY(mutex) = 0;   // collectives
  std::optional<Error> failure FARSPAN_GUARDED_BY(mutex);
  std::vector<Letter> letters FARSPAN_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<Request>> requests FARSPAN_GUARDED_BY(mutex);
  std::vector<int> left FARSPAN_GUARDED_BY(mutex);  // ranks
};

// A receive that waits for its message.
class Room::Request final : public detail::FutureState<int> {
 public:
  Request(std::shared_ptr<Room> room, int receiver, const Message& wanted, Block place)
      : to(receiver), message(wanted), data(place), room_(std::move(room)) {}

  bool takes(const Letter& letter) const noexcept {
    return letter.to == to && letter.tag == message.tag &&
           (message.peer < 0 || message.peer == letter.from);
  }
  void take(const Letter& letter) {
    if (letter.type != message.type || letter.count != data.count) {
      const auto of = [](size_t count, DType type) {
        return std::to_string(count) + " elements of " + std::string(name_of(type));
      };
      set_error(Error(Code::kShapeMismatch, "rank " + std::to_string(letter.from) + " sent " +
                                                of(letter.count, letter.type) + ", and rank " +
                                                std::to_string(to) + " expects " +
                                                of(data.count, message.type)));
      return;
    }
    if (!letter.bytes.empty()) std::memcpy(data.data, letter.bytes.data(), letter.bytes.size());
    set_value(letter.from);
  }

  const int to;
  const Message message;
  const Block data;

 protected:
  bool block(Deadline deadline) override {
    if (sleep(earlier(deadline, message.deadline))) return true;
    if (!message.deadline.expired()) return false;
    size_t erased = 0;
    {
      MutexLock lock(room_->mutex);
      erased =
          std::erase_if(room_->requests, [this](const auto& one) { return one.get() == this; });
    }
    if (erased == 0) return sleep(Deadline::never());  // its message is being copied
    const std::string who = message.peer < 0 ? "any rank" : "rank " + std::to_string(message.peer);
    set_error(Error(Code::kTimeout, "nothing came from " + who));
    return true;
  }

 private:
  const std::shared_ptr<Room> room_;
};

void Room::fail(const Error& why) noexcept {
  std::vector<std::shared_ptr<Request>> ended;
  {
    MutexLock lock(mutex);
    if (!failure) failure = why;
    ended.swap(requests);
    changed.notify_all();
  }
  for (const auto& request : ended) request->set_error(why);
}

Error has_left(int rank) {
  return Error(Code::kDisconnected, "rank " + std::to_string(rank) + " has left the group")
      .worker("rank " + std::to_string(rank));
}

void Room::leave(int rank) noexcept {
  bool is_needed = false;
  {
    MutexLock lock(mutex);
    left.push_back(rank);
    is_needed = std::find(taken.begin(), taken.end(), true) != taken.end();
  }
  if (is_needed) fail(has_left(rank));
}

class FakeBackend final : public Backend {
 public:
  FakeBackend(std::shared_ptr<Fabric> fabric, GroupSpec spec)
      : fabric_(std::move(fabric)), spec_(std::move(spec)), room_(fabric_->room(spec_)) {}

  std::string_view name() const noexcept override { return "fake"; }

  void broadcast(const Call& call, Block data) override { meet(call, {data}, {data}); }
  void all_reduce(const Call& call, Block data) override { meet(call, {data}, {data}); }
  void reduce(const Call& call, Block data) override { meet(call, {data}, {data}); }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    meet(call, {in}, {out.begin(), out.end()});
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    meet(call, {in}, {out.begin(), out.end()});
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    meet(call, {in.begin(), in.end()}, {out});
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    meet(call, {in.begin(), in.end()}, {out});
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    meet(call, {in.begin(), in.end()}, {out.begin(), out.end()});
  }
  void barrier(const Call& call) override { meet(call, {}, {}); }

  Future<int> send(const Message& message, Block data) override;
  Future<int> recv(const Message& message, Block data) override;
  void abort(const Error& why) noexcept override { room_->fail(why); }
  void leave() noexcept override { room_->leave(spec_.rank); }
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return std::make_shared<FakeBackend>(fabric_, std::move(spec));
  }

 private:
  void meet(const Call& call, std::vector<Block> in, std::vector<Block> out);
  static Error missing_locked(const Room& room, const Call& call) FARSPAN_REQUIRES(room.mutex);

  const std::shared_ptr<Fabric> fabric_;
  const GroupSpec spec_;
  const std::shared_ptr<Room> room_;
};

Error FakeBackend::missing_locked(const Room& room, const Call& call) {
  std::string who;
  for (size_t rank = 0; rank < room.taken.size(); ++rank) {
    if (!room.taken[rank]) who += (who.empty() ? "" : ", ") + std::to_string(rank);
  }
  return Error(Code::kTimeout, "waited for rank " + who)
      .advice("look at what it does, or give the operation more time")
      .worker("rank " + who)
      .operation(std::string(name_of(call.signature.op)));
}

// The last one that comes does it for all.
void FakeBackend::meet(const Call& call, std::vector<Block> in, std::vector<Block> out) {
  Room& room = *room_;
  const auto self = static_cast<size_t>(spec_.rank);
  MutexLock lock(room.mutex);
  if (room.failure) throw *room.failure;
  for (size_t rank = 0; rank < room.seats.size(); ++rank) {
    if (!room.taken[rank]) continue;
    const auto differs = difference(static_cast<int>(rank), room.seats[rank].call.signature,
                                    spec_.rank, call.signature);
    if (!differs) continue;
    room.failure = Error(Code::kShapeMismatch, *differs);
    room.changed.notify_all();
    throw *room.failure;
  }
  room.seats[self] = {call, std::move(in), std::move(out)};
  room.taken[self] = true;
  if (std::find(room.taken.begin(), room.taken.end(), false) == room.taken.end()) {
    try {
      perform(room.seats);
    } catch (const Error& error) {
      room.failure = error;
    }
    room.taken.assign(room.taken.size(), false);
    ++room.performed;
    room.changed.notify_all();
    if (room.failure) throw *room.failure;
    return;
  }
  if (!room.left.empty()) {
    room.failure = has_left(room.left.front());
    room.changed.notify_all();
    throw *room.failure;
  }
  const uint64_t before = room.performed;
  while (room.performed == before && !room.failure) {
    if (!room.changed.wait_until(room.mutex, call.deadline) && room.performed == before &&
        !room.failure) {
      room.failure = missing_locked(room, call);
      room.changed.notify_all();
    }
  }
  if (room.failure) throw *room.failure;
}

Future<int> FakeBackend::send(const Message& message, Block data) {
  const size_t bytes = data.count * size_of(message.type);
  Room::Letter letter{spec_.rank, message.peer, message.tag, message.type, data.count, {}};
  if (bytes > 0) letter.bytes.assign(data.data, data.data + bytes);
  const Promise<int> promise;
  std::shared_ptr<Room::Request> request;
  {
    MutexLock lock(room_->mutex);
    if (room_->failure) {
      promise.set_error(*room_->failure);
      return promise.future();
    }
    const auto found = std::find_if(room_->requests.begin(), room_->requests.end(),
                                    [&](const auto& one) { return one->takes(letter); });
    if (found == room_->requests.end()) {
      room_->letters.push_back(std::move(letter));
    } else {
      request = std::move(*found);
      room_->requests.erase(found);
    }
  }
  if (request) request->take(letter);
  promise.set_value(message.peer);
  return promise.future();
}

Future<int> FakeBackend::recv(const Message& message, Block data) {
  auto request = std::make_shared<Room::Request>(room_, spec_.rank, message, data);
  std::optional<Room::Letter> letter;
  std::optional<Error> failure;
  {
    MutexLock lock(room_->mutex);
    failure = room_->failure;
    const auto found = std::find_if(room_->letters.begin(), room_->letters.end(),
                                    [&](const auto& one) { return request->takes(one); });
    if (found != room_->letters.end()) {
      letter = std::move(*found);
      room_->letters.erase(found);
    } else if (!failure) {
      room_->requests.push_back(request);
    }
  }
  if (letter) {
    request->take(*letter);
  } else if (failure) {
    request->set_error(*failure);
  }
  return Future<int>(request);
}

namespace {
Error gone(int rank) {
  return Error(Code::kDisconnected, "rank " + std::to_string(rank) + " is gone")
      .worker("rank " + std::to_string(rank));
}
}  // namespace

Fabric::Fabric(int ranks) : ranks_(ranks), dead_(static_cast<size_t>(ranks)) {}

std::shared_ptr<Fabric> Fabric::make(int ranks) {
  return std::shared_ptr<Fabric>(new Fabric(ranks));
}

std::shared_ptr<Room> Fabric::room(const GroupSpec& spec) {
  std::shared_ptr<Room> room;
  std::optional<int> dead;
  {
    MutexLock lock(mutex_);
    auto& place = rooms_[spec.name];
    if (!place) place = std::make_shared<Room>(spec.ranks);
    room = place;
    for (const int rank : spec.ranks) {
      if (dead_[static_cast<size_t>(rank)]) dead = rank;
    }
  }
  if (dead) room->fail(gone(*dead));
  return room;
}

void Fabric::kill(int rank) {
  std::vector<std::shared_ptr<Room>> rooms;
  {
    MutexLock lock(mutex_);
    dead_[static_cast<size_t>(rank)] = true;
    for (const auto& [name, room] : rooms_) rooms.push_back(room);
  }
  for (const auto& room : rooms) {
    if (std::find(room->ranks.begin(), room->ranks.end(), rank) != room->ranks.end()) {
      room->fail(gone(rank));
    }
  }
}

Group Fabric::group(int rank, Millis timeout) {
  GroupSpec spec;
  spec.name = "world";
  for (int one = 0; one < ranks_; ++one) spec.ranks.push_back(one);
  spec.rank = rank;
  auto backend = std::make_shared<FakeBackend>(shared_from_this(), spec);
  return std::make_shared<ProcessGroup>(std::move(spec), rank, std::move(backend), timeout);
}

void run_ranks(int ranks, const std::function<void(int rank, int size)>& body, Millis timeout) {
  const auto fabric = Fabric::make(ranks);
  std::vector<std::exception_ptr> failures(static_cast<size_t>(ranks));
  std::atomic<int> first{-1};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const CurrentGroup current(fabric->group(rank, timeout));
        body(rank, ranks);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
        int none = -1;
        first.compare_exchange_strong(none, rank);
        fabric->kill(rank);  // the others need not wait for it
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first >= 0) std::rethrow_exception(failures[static_cast<size_t>(first.load())]);
}

}  // namespace farspan::dist::fake
