#include <farspan/c10d/backends/fake/fake.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/fake/reference.h>
#include <farspan/c10d/backends/late.h>
#include <farspan/c10d/backends/messages/inbox.h>

namespace farspan::dist::fake {

// Where the ranks of one group meet.
struct Room {
  explicit Room(std::vector<int> who)
      : ranks(std::move(who)),
        seats(ranks.size()),
        taken(ranks.size()),
        inboxes(ranks.size()),
        told(ranks.size()) {}

  // What is under way and what comes ends with it: messages, and the collectives from one on.
  void fail(const Error& why, uint64_t since) noexcept;
  // The failure of the earliest collective counts.
  void fail_locked(const Error& why, uint64_t since) FARSPAN_REQUIRES(mutex);
  bool has_failed_locked(uint64_t sequence) const FARSPAN_REQUIRES(mutex) {
    return failure && failed_since <= sequence;
  }
  // A rank, by its place, calls nothing more: those that wait for it end, and those that will.
  enum class Absence { kLeft, kDead };
  void lose(int rank, Absence how) noexcept;
  // One that may be a member, in the default group, is dead.
  void lose_global(int rank) noexcept {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found != ranks.end()) lose(static_cast<int>(found - ranks.begin()), Absence::kDead);
  }
  // "rank 3", in the default group. All are in this process, which needs no name.
  std::string name_of(int rank) const {
    return "rank " + std::to_string(ranks[static_cast<size_t>(rank)]);
  }
  Error absent_locked(int rank) const FARSPAN_REQUIRES(mutex) {
    return absent.at(rank) == Absence::kLeft ? left_error(name_of(rank))
                                             : gone_error(name_of(rank));
  }
  // A death ends the receives from anyone that wait, or else the next one; later ones go on with
  // who is left.
  std::optional<int> untold_death_locked(int receiver) const FARSPAN_REQUIRES(mutex);
  void note_told_locked(int receiver) FARSPAN_REQUIRES(mutex);
  std::optional<Error> why_none_locked(int receiver, const messages::Receive& receive) const
      FARSPAN_REQUIRES(mutex);

  class Waiting;
  using Inbox = messages::Inbox<std::vector<std::byte>>;

  const std::vector<int> ranks;  // in the default group
  Mutex mutex;
  CondVar changed;
  std::vector<Seat> seats FARSPAN_GUARDED_BY(mutex);
  std::vector<bool> taken FARSPAN_GUARDED_BY(mutex);  // by those that wait for the others
  uint64_t performed FARSPAN_GUARDED_BY(mutex) = 0;   // collectives
  std::optional<Error> failure FARSPAN_GUARDED_BY(mutex);
  uint64_t failed_since FARSPAN_GUARDED_BY(mutex) = 0;   // the first collective that ends with it
  std::vector<Inbox> inboxes FARSPAN_GUARDED_BY(mutex);  // by rank in the group
  std::map<int, Absence> absent FARSPAN_GUARDED_BY(mutex);    // by place
  std::vector<std::set<int>> told FARSPAN_GUARDED_BY(mutex);  // each rank, of whose deaths
};

// A receive that waits for its message, as long as somebody waits for it.
class Room::Waiting final : public messages::Receive {
 public:
  Waiting(std::shared_ptr<Room> room, int rank, const Message& message, Block data)
      : Receive(message, data), room_(std::move(room)), rank_(rank) {}

  void take(const Inbox::Arrived& message) {
    const messages::Envelope& envelope = message.envelope;
    if (!takes(envelope)) {
      set_error(refusal(envelope, room_->name_of(envelope.from), room_->name_of(rank_)));
      return;
    }
    if (!message.content.empty()) {
      std::memcpy(place.data, message.content.data(), message.content.size());
    }
    set_value(message.envelope.from);
  }

 protected:
  bool block(Deadline deadline) override {
    if (sleep(earlier(deadline, wanted.deadline))) return true;
    if (!wanted.deadline.expired()) return false;
    bool withdrawn = false;
    const std::string awaited = wanted.peer < 0 ? "any rank" : room_->name_of(wanted.peer);
    {
      MutexLock lock(room_->mutex);
      withdrawn = room_->inboxes[static_cast<size_t>(rank_)].withdraw(*this);
    }
    if (withdrawn) set_error(messages::not_come_error(awaited, wanted.tag));
    return sleep(Deadline::never());  // else its message is being copied
  }

 private:
  const std::shared_ptr<Room> room_;
  const int rank_;
};

void Room::fail_locked(const Error& why, uint64_t since) {
  if (has_failed_locked(since)) return;
  failure = why;
  failed_since = since;
  changed.notify_all();
}

void Room::fail(const Error& why, uint64_t since) noexcept {
  std::vector<std::shared_ptr<messages::Receive>> ended;
  {
    MutexLock lock(mutex);
    fail_locked(why, since);
    for (Inbox& inbox : inboxes) {
      for (auto& receive : inbox.posted()) {
        inbox.withdraw(*receive);
        ended.push_back(std::move(receive));
      }
    }
  }
  for (const auto& receive : ended) receive->set_error(why);
}

std::optional<int> Room::untold_death_locked(int receiver) const {
  for (const auto& [rank, how] : absent) {
    if (how == Absence::kDead && !told[static_cast<size_t>(receiver)].contains(rank)) return rank;
  }
  return std::nullopt;
}

void Room::note_told_locked(int receiver) {
  if (const auto dead = untold_death_locked(receiver)) {
    told[static_cast<size_t>(receiver)].insert(*dead);
  }
}

// Why nothing more can come for it.
std::optional<Error> Room::why_none_locked(int receiver, const messages::Receive& receive) const {
  if (absent.contains(receiver)) return left_error();
  if (failure) return failure;
  const int from = receive.wanted.peer;
  if (from >= 0) return absent.contains(from) ? std::optional(absent_locked(from)) : std::nullopt;
  if (const auto dead = untold_death_locked(receiver)) return absent_locked(*dead);
  if (absent.empty() || absent.size() + 1 < ranks.size()) return std::nullopt;
  return Error(Code::kDisconnected, "all other ranks have left the group");
}

void Room::lose(int rank, Absence how) noexcept {
  std::vector<std::pair<std::shared_ptr<messages::Receive>, Error>> ended;
  {
    MutexLock lock(mutex);
    if (!absent.emplace(rank, how).second) return;
    for (size_t one = 0; one < inboxes.size(); ++one) {
      const auto receiver = static_cast<int>(one);
      bool some_from_anyone = false;
      for (auto& receive : inboxes[one].posted()) {
        std::optional<Error> why = why_none_locked(receiver, *receive);
        if (!why) continue;
        some_from_anyone |= receive->wanted.peer < 0;
        inboxes[one].withdraw(*receive);
        ended.emplace_back(std::move(receive), std::move(*why));
      }
      if (some_from_anyone) note_told_locked(receiver);
    }
    // The collective that is under way needs it.
    if (std::find(taken.begin(), taken.end(), true) != taken.end()) {
      fail_locked(absent_locked(rank), performed + 1);
    }
  }
  for (auto& [receive, why] : ended) receive->set_error(std::move(why));
}

class FakeBackend final : public Backend {
 public:
  FakeBackend(std::shared_ptr<Fabric> fabric, GroupSpec spec)
      : fabric_(std::move(fabric)), spec_(std::move(spec)), room_(fabric_->room(spec_)) {}

  std::string_view name() const noexcept override { return "fake"; }
  std::string name_of(int rank) const override { return room_->name_of(rank); }

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
  void abort(const Error& why, uint64_t since) noexcept override { room_->fail(why, since); }
  void leave() noexcept override { room_->lose(spec_.rank, Room::Absence::kLeft); }
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return std::make_shared<FakeBackend>(fabric_, std::move(spec));
  }

 private:
  void meet(const Call& call, std::vector<Block> in, std::vector<Block> out);
  Error missing_locked(const Room& room, const Call& call, TimePoint since) const
      FARSPAN_REQUIRES(room.mutex);
  Error why_ended_locked(const Room& room) const FARSPAN_REQUIRES(room.mutex);

  const std::shared_ptr<Fabric> fabric_;
  const GroupSpec spec_;
  const std::shared_ptr<Room> room_;
};

Error FakeBackend::missing_locked(const Room& room, const Call& call, TimePoint since) const {
  std::string who;
  for (size_t rank = 0; rank < room.taken.size(); ++rank) {
    if (!room.taken[rank]) {
      who += (who.empty() ? "" : ", ") + room.name_of(static_cast<int>(rank));
    }
  }
  return late_error(room.name_of(spec_.rank), since, who, false)
      .operation(std::string(dist::name_of(call.signature.op)));
}

// Of a room that has failed. Who has left is told so, not that a rank is missing.
Error FakeBackend::why_ended_locked(const Room& room) const {
  return room.absent.contains(spec_.rank) ? left_error() : *room.failure;
}

// The last one that comes does it for all.
void FakeBackend::meet(const Call& call, std::vector<Block> in, std::vector<Block> out) {
  const TimePoint begun = Clock::now();
  Room& room = *room_;
  const auto self = static_cast<size_t>(spec_.rank);
  MutexLock lock(room.mutex);
  const uint64_t sequence = call.signature.sequence;
  if (room.has_failed_locked(sequence)) throw why_ended_locked(room);
  for (size_t rank = 0; rank < room.seats.size(); ++rank) {
    if (!room.taken[rank]) continue;
    const auto differs =
        difference(room.name_of(static_cast<int>(rank)), room.seats[rank].call.signature,
                   room.name_of(spec_.rank), call.signature);
    if (!differs) continue;
    room.fail_locked(Error(Code::kShapeMismatch, *differs), sequence);
    throw *room.failure;
  }
  room.seats[self] = {call, std::move(in), std::move(out)};
  room.taken[self] = true;
  if (std::find(room.taken.begin(), room.taken.end(), false) == room.taken.end()) {
    try {
      perform(room.seats, room.ranks);
    } catch (const Error& error) {
      room.fail_locked(error, sequence);
    }
    room.taken.assign(room.taken.size(), false);
    room.changed.notify_all();
    if (room.has_failed_locked(sequence)) throw *room.failure;
    ++room.performed;
    return;
  }
  if (!room.absent.empty()) {
    room.fail_locked(room.absent_locked(room.absent.begin()->first), sequence);
    throw why_ended_locked(room);
  }
  const uint64_t before = room.performed;
  const auto is_open = [&]() FARSPAN_REQUIRES(room.mutex) {
    return room.performed == before && !room.has_failed_locked(sequence);
  };
  while (is_open()) {
    if (room.changed.wait_until(room.mutex, call.deadline) || !is_open()) continue;
    room.fail_locked(missing_locked(room, call, begun), sequence);
  }
  // What was performed is done, whatever has failed since.
  if (room.performed == before) throw why_ended_locked(room);
}

Future<int> FakeBackend::send(const Message& message, Block data) {
  const messages::Envelope envelope{spec_.rank, message.tag, message.type, data.count};
  Room::Inbox::Arrived arrived{envelope, {}};
  if (envelope.bytes() > 0) arrived.content.assign(data.data, data.data + envelope.bytes());
  const Promise<int> promise;
  std::optional<Error> why;
  std::shared_ptr<messages::Receive> receive;
  {
    MutexLock lock(room_->mutex);
    why = room_->failure;
    if (room_->absent.contains(message.peer)) why = room_->absent_locked(message.peer);
    if (room_->absent.contains(spec_.rank)) why = left_error();
    if (!why) {
      Room::Inbox& inbox = room_->inboxes[static_cast<size_t>(message.peer)];
      receive = inbox.match(envelope);
      if (!receive) inbox.keep(std::move(arrived));
    }
  }
  if (receive) static_cast<Room::Waiting&>(*receive).take(arrived);
  if (why) {
    promise.set_error(*why);
  } else {
    promise.set_value(message.peer);
  }
  return promise.future();
}

Future<int> FakeBackend::recv(const Message& message, Block data) {
  const auto receive = std::make_shared<Room::Waiting>(room_, spec_.rank, message, data);
  std::optional<Room::Inbox::Arrived> arrived;
  std::optional<Error> why;
  {
    MutexLock lock(room_->mutex);
    Room::Inbox& inbox = room_->inboxes[static_cast<size_t>(spec_.rank)];
    arrived = inbox.post(receive);
    if (!arrived) why = room_->why_none_locked(spec_.rank, *receive);
    if (why) inbox.withdraw(*receive);
    if (why && message.peer < 0) room_->note_told_locked(spec_.rank);
  }
  if (arrived) receive->take(*arrived);
  if (why) receive->set_error(*why);
  return Future<int>(receive);
}

Fabric::Fabric(int ranks) : ranks_(ranks), dead_(static_cast<size_t>(ranks)) {}

std::shared_ptr<Fabric> Fabric::make(int ranks) {
  return std::shared_ptr<Fabric>(new Fabric(ranks));
}

std::shared_ptr<Room> Fabric::room(const GroupSpec& spec) {
  std::shared_ptr<Room> room;
  std::vector<int> dead;
  {
    MutexLock lock(mutex_);
    auto& place = rooms_[spec.name];
    if (!place) place = std::make_shared<Room>(spec.ranks);
    room = place;
    for (const int rank : spec.ranks) {
      if (dead_[static_cast<size_t>(rank)]) dead.push_back(rank);
    }
  }
  for (const int rank : dead) room->lose_global(rank);
  return room;
}

void Fabric::kill(int rank) {
  std::vector<std::shared_ptr<Room>> rooms;
  {
    MutexLock lock(mutex_);
    dead_[static_cast<size_t>(rank)] = true;
    for (const auto& [name, room] : rooms_) rooms.push_back(room);
  }
  for (const auto& room : rooms) room->lose_global(rank);
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
      const CurrentGroup current(fabric->group(rank, timeout));
      try {
        body(rank, ranks);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
        int none = -1;
        first.compare_exchange_strong(none, rank);
        fabric->kill(rank);  // before its group goes, and it leaves
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first >= 0) std::rethrow_exception(failures[static_cast<size_t>(first.load())]);
}

}  // namespace farspan::dist::fake
