#include <farspan/c10d/backends/nccl/simulated/simulated_library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include <farspan/c10d/backends/nccl/elements.h>
#include <farspan/c10d/backends/nccl/simulated/clique.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist::nccl {
namespace {

using Kind = Match::Kind;
using device::Stream;

Error refused(std::string why) { return Error(Code::kInvalidArgument, std::move(why)); }

// Of messages that begin as one.
bool receives_where_it_sends(std::span<const std::shared_ptr<Kernel>> kernels) {
  const auto meet = [](const Operation& sent, const Operation& got) {
    const auto* const from = static_cast<const std::byte*>(sent.in);
    const auto* const to = static_cast<const std::byte*>(got.out);
    return sent.place == 0 && got.place == 1 && from < to + got.result.size() &&
           to < from + sent.given.size();
  };
  for (const auto& kernel : kernels) {
    for (const Operation& one : kernel->operations) {
      for (const Operation& other : kernel->operations) {
        const bool are_messages =
            one.match.kind == Kind::kMessage && other.match.kind == Kind::kMessage;
        if (are_messages && meet(one, other)) return true;
      }
    }
  }
  return false;
}

// The cliques of this process, by the id that their ranks meet by.
class Cliques {
 public:
  static Cliques& of_process() {
    static Cliques* one = new Cliques;  // never destroyed: streams may still be at work
    return *one;
  }

  UniqueId make_id() {
    MutexLock lock(mutex_);
    const Words words{kMagic, ++made_, random_()};
    UniqueId id{};
    std::memcpy(id.data(), &words, sizeof words);
    return id;
  }
  std::shared_ptr<Clique> find(const UniqueId& id, int ranks) {
    Words words;
    std::memcpy(&words, id.data(), sizeof words);
    if (words.magic != kMagic) throw refused("this is no id of a simulated NCCL");
    MutexLock lock(mutex_);
    std::weak_ptr<Clique>& known = known_[id];
    std::shared_ptr<Clique> clique = known.lock();
    if (!clique) known = clique = std::make_shared<Clique>(ranks);
    if (clique->ranks() != ranks) throw refused("the ranks do not agree on how many they are");
    return clique;
  }

 private:
  struct Words {
    uint64_t magic, number, random;
  };
  static constexpr uint64_t kMagic = 0x6c636e5f6d6973;

  Mutex mutex_;
  uint64_t made_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::mt19937_64 random_ FARSPAN_GUARDED_BY(mutex_){std::random_device()()};
  std::map<UniqueId, std::weak_ptr<Clique>> known_ FARSPAN_GUARDED_BY(mutex_);
};

// One rank's communicator. One that has ended is kept: what uses it then is a fault, but after an
// abort, of which not all threads can know.
struct Member {
  enum class Life { kLive, kAborting, kEnded };

  // Constant.
  std::shared_ptr<Clique> clique;
  int device, rank;
  // Guarded by the library's mutex.
  Life life = Life::kLive;
  bool was_aborted = false;
  std::string failure = {};   // not empty: it has failed
  std::thread::id user = {};  // who calls it now

  std::string name() const {
    return "the communicator of rank " + std::to_string(rank) + " of " +
           std::to_string(clique->ranks());
  }
};

class Simulation final : public SimulatedLibrary {
 public:
  explicit Simulation(std::shared_ptr<device::Devices> devices) : devices_(std::move(devices)) {}
  ~Simulation() override;
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  const std::shared_ptr<device::Devices>& devices() const noexcept override { return devices_; }
  UniqueId make_unique_id() override { return Cliques::of_process().make_id(); }
  Comm begin(const UniqueId& id, int device, int rank, int ranks) override;
  State state(Comm comm) override;
  void abort(Comm comm) noexcept override;
  bool end(Comm comm) noexcept override;
  bool reduces(ReduceOp::Kind op, DType type) const noexcept override {
    return as_nccl(op, type).has_value();
  }

  void group_begin() override { ++groups()[this].depth; }
  void group_end() override;

  void all_reduce(Comm comm, const void* in, void* out, size_t count, DType type, ReduceOp::Kind op,
                  Stream stream) override;
  void reduce(Comm comm, const void* in, void* out, size_t count, DType type, ReduceOp::Kind op,
              int root, Stream stream) override;
  void reduce_scatter(Comm comm, const void* in, void* out, size_t count, DType type,
                      ReduceOp::Kind op, Stream stream) override;
  void broadcast(Comm comm, void* data, size_t bytes, int root, Stream stream) override;
  void all_gather(Comm comm, const void* in, void* out, size_t bytes, Stream stream) override;
  void send(Comm comm, const void* data, size_t bytes, int peer, Stream stream) override;
  void recv(Comm comm, void* data, size_t bytes, int peer, Stream stream) override;

  void fail_all(const std::string& why) override {
    fail_where([](const Member&) { return true; }, why);
  }
  void fail(int rank, const std::string& why) override {
    fail_where([rank](const Member& member) { return member.rank == rank; }, why);
  }
  void hold_aborts(Future<void> until) override {
    MutexLock lock(mutex_);
    aborts_begin_ = std::move(until);
  }
  void let_ends_fail() override {
    MutexLock lock(mutex_);
    ends_fail_ = true;
  }

  size_t communicators() const override {
    MutexLock lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(
        members_, [](const auto& one) { return one.second->life != Member::Life::kEnded; }));
  }
  size_t aborted() const override {
    MutexLock lock(mutex_);
    return aborted_;
  }
  size_t begun() const override {
    MutexLock lock(mutex_);
    return members_.size();
  }
  std::vector<std::string> faults() const override {
    MutexLock lock(mutex_);
    return faults_;
  }

 private:
  using MemberPtr = std::shared_ptr<Member>;  // the library's, and of calls under way
  struct Pending {
    MemberPtr member;
    Stream stream;
    Operation operation;
  };
  // What the calling thread has called since group_begin().
  struct Group {
    int depth = 0;
    std::vector<Pending> pending;
    std::set<MemberPtr> used;
    std::optional<Error> failure;  // then nothing of it begins
  };
  static std::unordered_map<const Simulation*, Group>& groups() {
    thread_local std::unordered_map<const Simulation*, Group> all;
    return all;
  }

  MemberPtr find_locked(Comm comm, const char* call) FARSPAN_REQUIRES(mutex_);
  MemberPtr enter(Comm comm, const char* call);
  void leave(Member& member) noexcept;
  template <class Make>
  void call(Comm comm, Stream stream, const char* name, const Make& make);
  void launch(const MemberPtr& member, std::vector<Pending> calls);
  void queue(const std::shared_ptr<Clique>& clique, const std::shared_ptr<Kernel>& kernel);
  void note_locked(std::string fault) FARSPAN_REQUIRES(mutex_) {
    faults_.push_back(std::move(fault));
  }
  template <class Which>
  void fail_where(const Which& which, const std::string& why) {
    MutexLock lock(mutex_);
    for (auto& [comm, member] : members_) {
      if (member->life == Member::Life::kLive && which(*member)) member->failure = why;
    }
  }

  const std::shared_ptr<device::Devices> devices_;
  mutable Mutex mutex_;
  std::unordered_map<Comm, MemberPtr> members_ FARSPAN_GUARDED_BY(mutex_);
  size_t aborted_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Future<void> aborts_begin_ FARSPAN_GUARDED_BY(mutex_);
  bool ends_fail_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::vector<std::string> faults_ FARSPAN_GUARDED_BY(mutex_);
};

// Or the streams that wait would wait for ever.
Simulation::~Simulation() {
  MutexLock lock(mutex_);
  for (const auto& [comm, member] : members_) member->clique->abort(member->rank);
}

Comm Simulation::begin(const UniqueId& id, int device, int rank, int ranks) {
  if (rank < 0 || rank >= ranks) throw refused("there is no such rank");
  if (device < 0 || device >= devices_->count()) throw refused("there is no such device");
  const auto member =
      std::make_shared<Member>(Member{Cliques::of_process().find(id, ranks), device, rank});
  MutexLock lock(mutex_);
  if (!member->clique->join(rank)) {
    note_locked(member->name() + " has begun twice with one id");
    throw refused("this rank has come with this id before");
  }
  members_.emplace(member.get(), member);
  return member.get();
}

Simulation::MemberPtr Simulation::find_locked(Comm comm, const char* call) {
  const auto found = members_.find(comm);
  if (found == members_.end()) {
    note_locked(std::string(call) + " of what is no communicator");
    throw refused("this is no communicator").operation(call);
  }
  const MemberPtr& member = found->second;
  if (member->life == Member::Life::kEnded) {
    if (member->was_aborted) throw Error(Code::kUnavailable, "it has been aborted").operation(call);
    note_locked(std::string(call) + ": " + member->name() + " has ended");
    throw refused("this communicator has ended").operation(call);
  }
  if (member->life == Member::Life::kAborting) {
    throw Error(Code::kUnavailable, "it is being aborted").operation(call);
  }
  if (!member->failure.empty()) throw Error(Code::kUnavailable, member->failure).operation(call);
  return member;
}

Library::State Simulation::state(Comm comm) {
  MutexLock lock(mutex_);
  return find_locked(comm, "state")->clique->is_complete() ? State::kReady : State::kBusy;
}

void Simulation::abort(Comm comm) noexcept {
  MemberPtr member;
  Future<void> begins;
  {
    MutexLock lock(mutex_);
    const auto found = members_.find(comm);
    if (found == members_.end()) return note_locked("abort of what is no communicator");
    member = found->second;
    if (member->life != Member::Life::kLive) {
      return note_locked("abort: " + member->name() + " has ended");
    }
    member->life = Member::Life::kAborting;
    member->was_aborted = true;
    begins = aborts_begin_;
  }
  if (begins.valid()) begins.wait_until(Deadline::never());
  member->clique->abort(member->rank);
  MutexLock lock(mutex_);
  member->life = Member::Life::kEnded;
  ++aborted_;
}

bool Simulation::end(Comm comm) noexcept {
  MutexLock lock(mutex_);
  const auto found = members_.find(comm);
  if (found == members_.end()) {
    note_locked("end of what is no communicator");
    return true;
  }
  Member& member = *found->second;
  if (member.life != Member::Life::kLive) {
    note_locked("end: " + member.name() + " has ended");
    return true;
  }
  if (!member.clique->is_complete()) note_locked("end: " + member.name() + " is not ready");
  if (member.clique->is_at_work(member.rank)) note_locked("end: " + member.name() + " is at work");
  if (ends_fail_) return false;
  member.life = Member::Life::kEnded;
  member.clique->abort(member.rank);  // so that a test that has done so comes to its end
  return true;
}

Simulation::MemberPtr Simulation::enter(Comm comm, const char* call) {
  MutexLock lock(mutex_);
  MemberPtr member = find_locked(comm, call);
  if (!member->clique->is_complete()) {
    note_locked(std::string(call) + ": " + member->name() + " is not ready");
    throw refused("this communicator is not ready").operation(call);
  }
  const auto self = std::this_thread::get_id();
  if (member->user == std::thread::id()) {
    member->user = self;
  } else if (member->user != self) {
    note_locked(std::string(call) + ": another thread is calling " + member->name());
  }
  return member;
}

void Simulation::leave(Member& member) noexcept {
  MutexLock lock(mutex_);
  if (member.user == std::this_thread::get_id()) member.user = {};
}

// `make(member)` gives the operation; none: there is nothing to do.
template <class Make>
void Simulation::call(Comm comm, Stream stream, const char* name, const Make& make) {
  const auto found = groups().find(this);
  Group* const group = found == groups().end() ? nullptr : &found->second;
  MemberPtr member;
  try {
    member = enter(comm, name);
    if (group) group->used.insert(member);
    if (stream.device != member->device) throw refused("the stream is of another device");
    std::optional<Operation> operation = make(*member);
    if (operation) {
      std::vector<Pending> alone;
      (group ? group->pending : alone).push_back({member, stream, std::move(*operation)});
      if (!group) launch(member, std::move(alone));
    }
  } catch (const Error& error) {
    if (group) group->failure = error;
    if (member && !group) leave(*member);
    throw;
  }
  if (!group) leave(*member);
}

void Simulation::group_end() {
  const auto found = groups().find(this);
  if (found == groups().end()) {
    MutexLock lock(mutex_);
    note_locked("group_end without group_begin");
    throw refused("no group has begun").operation("group_end");
  }
  if (--found->second.depth > 0) return;
  Group group = std::move(found->second);
  groups().erase(found);
  std::map<MemberPtr, std::vector<Pending>> calls;
  for (Pending& one : group.pending) calls[one.member].push_back(std::move(one));
  try {
    if (group.failure) throw *group.failure;
    for (auto& [member, own] : calls) launch(member, std::move(own));
  } catch (...) {
    for (const MemberPtr& member : group.used) leave(*member);
    throw;
  }
  for (const MemberPtr& member : group.used) leave(*member);
}

// All calls of one communicator that begin as one.
void Simulation::launch(const MemberPtr& member, std::vector<Pending> calls) {
  {
    MutexLock lock(mutex_);
    // While it was called, which is no fault.
    if (member->life != Member::Life::kLive) throw Error(Code::kUnavailable, "it is being aborted");
  }
  int to_self = 0;
  std::vector<std::shared_ptr<Kernel>> kernels;  // the streams', which keep them
  for (Pending& one : calls) {
    const Operation& operation = one.operation;
    const bool is_own =
        operation.match.kind == Kind::kMessage && operation.match.root == operation.match.peer;
    if (is_own) to_self += operation.place == 0 ? 1 : -1;
    const auto same = std::ranges::find_if(
        kernels, [&](const auto& kernel) { return kernel->stream.handle == one.stream.handle; });
    std::shared_ptr<Kernel> kernel = same == kernels.end() ? nullptr : *same;
    if (!kernel) {
      kernel = kernels.emplace_back(std::make_shared<Kernel>());
      kernel->rank = member->rank;
      kernel->stream = one.stream;
    }
    kernel->operations.push_back(std::move(one.operation));
  }
  if (receives_where_it_sends(kernels)) {
    MutexLock lock(mutex_);
    note_locked("what comes may overwrite what goes, which is not in place to NCCL");
  }
  if (to_self != 0) throw refused("a message to oneself, of which the other half is in no group");
  if (kernels.empty()) return;
  if (!member->clique->connect(kernels)) {
    throw Error(Code::kUnavailable, "it was aborted while it waited for the others");
  }
  member->clique->enlist(kernels);
  for (const auto& kernel : kernels) queue(member->clique, kernel);
}

void Simulation::queue(const std::shared_ptr<Clique>& clique,
                       const std::shared_ptr<Kernel>& kernel) {
  const Stream stream = kernel->stream;
  devices_->then(stream, [clique, kernel] { clique->wait_for_turn(*kernel); });
  for (Operation& one : kernel->operations) {
    if (!one.given.empty()) devices_->copy(stream, one.given.data(), one.in, one.given.size());
  }
  devices_->then(stream, [clique, kernel] { clique->run(*kernel); });
  for (Operation& one : kernel->operations) {
    if (!one.result.empty()) devices_->copy(stream, one.out, one.result.data(), one.result.size());
  }
  devices_->then(stream, [clique, kernel] { clique->finish(*kernel); });
}

AsNccl checked_reduction(ReduceOp::Kind op, DType type) {
  if (const auto as = as_nccl(op, type)) return *as;
  throw refused("NCCL has no " + std::string(name_of(op)) + " of " + std::string(name_of(type)));
}

int checked_rank(int rank, const Member& member) {
  if (rank >= 0 && rank < member.clique->ranks()) return rank;
  throw refused("there is no rank " + std::to_string(rank));
}

// NCCL leaves out collectives of nothing.
std::optional<Operation> collective(const Match& match, int rank, const Operation::Bytes& bytes) {
  if (match.count == 0) return std::nullopt;
  return Operation(match, rank, static_cast<size_t>(rank), bytes);
}

void Simulation::all_reduce(Comm comm, const void* in, void* out, size_t count, DType type,
                            ReduceOp::Kind op, Stream stream) {
  call(comm, stream, "all_reduce", [&](const Member& member) {
    const AsNccl as = checked_reduction(op, type);
    const size_t bytes = count * size_of(type);
    return collective({Kind::kAllReduce, count * as.factor, as.type, as.op}, member.rank,
                      {in, bytes, out, bytes});
  });
}

void Simulation::reduce(Comm comm, const void* in, void* out, size_t count, DType type,
                        ReduceOp::Kind op, int root, Stream stream) {
  call(comm, stream, "reduce", [&](const Member& member) {
    const AsNccl as = checked_reduction(op, type);
    const size_t bytes = count * size_of(type);
    const bool is_root = member.rank == checked_rank(root, member);
    return collective({Kind::kReduce, count * as.factor, as.type, as.op, root}, member.rank,
                      {in, bytes, out, is_root ? bytes : 0});
  });
}

void Simulation::reduce_scatter(Comm comm, const void* in, void* out, size_t count, DType type,
                                ReduceOp::Kind op, Stream stream) {
  call(comm, stream, "reduce_scatter", [&](const Member& member) {
    const AsNccl as = checked_reduction(op, type);
    const size_t bytes = count * size_of(type);
    const auto ranks = static_cast<size_t>(member.clique->ranks());
    return collective({Kind::kReduceScatter, count * as.factor, as.type, as.op}, member.rank,
                      {in, bytes * ranks, out, bytes});
  });
}

void Simulation::broadcast(Comm comm, void* data, size_t bytes, int root, Stream stream) {
  call(comm, stream, "broadcast", [&](const Member& member) {
    const bool is_root = member.rank == checked_rank(root, member);
    Match match{Kind::kBroadcast, bytes};
    match.root = root;
    return collective(match, member.rank, {data, is_root ? bytes : 0, data, is_root ? 0 : bytes});
  });
}

void Simulation::all_gather(Comm comm, const void* in, void* out, size_t bytes, Stream stream) {
  call(comm, stream, "all_gather", [&](const Member& member) {
    const auto ranks = static_cast<size_t>(member.clique->ranks());
    return collective({Kind::kAllGather, bytes}, member.rank, {in, bytes, out, bytes * ranks});
  });
}

void Simulation::send(Comm comm, const void* data, size_t bytes, int peer, Stream stream) {
  call(comm, stream, "send", [&](const Member& member) {
    Match match{Kind::kMessage, bytes};
    match.root = member.rank;
    match.peer = checked_rank(peer, member);
    return std::optional(Operation(match, member.rank, 0, {data, bytes, nullptr, 0}));
  });
}

void Simulation::recv(Comm comm, void* data, size_t bytes, int peer, Stream stream) {
  call(comm, stream, "recv", [&](const Member& member) {
    Match match{Kind::kMessage, bytes};
    match.root = checked_rank(peer, member);
    match.peer = member.rank;
    return std::optional(Operation(match, member.rank, 1, {nullptr, 0, data, bytes}));
  });
}

}  // namespace

std::shared_ptr<SimulatedLibrary> make_simulated_library(std::shared_ptr<device::Devices> devices) {
  return std::make_shared<Simulation>(std::move(devices));
}

}  // namespace farspan::dist::nccl
