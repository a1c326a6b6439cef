#include <farspan/c10d/backends/nccl/simulated/clique.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/kernels/reduce.h>
#include <farspan/c10d/device/simulated/simulated.h>

namespace farspan::dist::nccl {
namespace {

using Kind = Match::Kind;

size_t places_of(const Match& match, int ranks) noexcept {
  return match.kind == Kind::kMessage ? 2 : static_cast<size_t>(ranks);
}

// What all have given from `offset` on, reduced in the order of the ranks.
void reduce(const Match& match, std::span<Operation* const> all, size_t offset,
            std::vector<std::byte>& result) {
  std::vector<const std::byte*> given;
  for (const Operation* one : all) given.push_back(one->given.data() + offset);
  const int divisor = match.op == ReduceOp::kAvg ? static_cast<int>(all.size()) : 1;
  kernels::reduce(match.type, match.op, result.data(), given, match.count, divisor);
}

// `all` are by place, and equal. Results are written in place: whoever queues copies of them is
// looking at where they are.
void perform(const Match& match, std::span<Operation* const> all) {
  const auto root = static_cast<size_t>(match.root);
  switch (match.kind) {
    case Kind::kAllReduce:
      reduce(match, all, 0, all.front()->result);
      for (Operation* one : all.subspan(1))
        std::ranges::copy(all.front()->result, one->result.begin());
      return;
    case Kind::kReduce:
      return reduce(match, all, 0, all[root]->result);
    case Kind::kReduceScatter:
      for (size_t rank = 0; rank < all.size(); ++rank) {
        reduce(match, all, rank * all[rank]->result.size(), all[rank]->result);
      }
      return;
    case Kind::kBroadcast:
      for (Operation* one : all) {
        if (one != all[root]) std::ranges::copy(all[root]->given, one->result.begin());
      }
      return;
    case Kind::kAllGather:
      for (Operation* one : all) {
        auto to = one->result.begin();
        for (const Operation* from : all) to = std::ranges::copy(from->given, to).out;
      }
      return;
    case Kind::kMessage:
      std::ranges::copy(all.front()->given, all.back()->result.begin());
      return;
  }
}

}  // namespace

bool Clique::join(int rank) {
  MutexLock lock(mutex_);
  return !std::exchange(seat_locked(rank).is_taken, true);
}

bool Clique::is_complete() const {
  MutexLock lock(mutex_);
  return std::ranges::all_of(seats_, &Seat::is_taken);
}

bool Clique::is_at_work(int rank) const {
  MutexLock lock(mutex_);
  return !seats_[static_cast<size_t>(rank)].under_way.empty();
}

void Clique::abort(int rank) {
  MutexLock lock(mutex_);
  seat_locked(rank).is_aborted = true;
  for (auto& [match, waiting] : came_) {
    for (Operation*& one : waiting) {
      if (one && one->rank == rank) one = nullptr;
    }
  }
  changed_.notify_all();
}

Clique::Connection Clique::connection_of(const Match& match) {
  const bool is_message = match.kind == Kind::kMessage;
  return {static_cast<int>(match.kind), is_message ? match.root : -1, is_message ? match.peer : -1};
}

bool Clique::connect(std::span<const std::shared_ptr<Kernel>> kernels) {
  MutexLock lock(mutex_);
  const int rank = kernels.front()->rank;
  std::map<Connection, size_t> wanted;
  for (const std::shared_ptr<Kernel>& kernel : kernels) {
    for (const Operation& one : kernel->operations) {
      const Connection connection = connection_of(one.match);
      const bool to_itself = connection[1] >= 0 && connection[1] == connection[2];
      wanted[connection] = to_itself ? 1 : places_of(one.match, ranks());
      connected_[connection].insert(rank);
    }
  }
  changed_.notify_all();
  for (const auto& [connection, ranks_needed] : wanted) {
    while (connected_[connection].size() < ranks_needed) {
      if (seat_locked(rank).is_aborted) return false;
      changed_.wait(mutex_);
    }
  }
  return true;
}

void Clique::enlist(std::span<const std::shared_ptr<Kernel>> kernels) {
  MutexLock lock(mutex_);
  Seat& seat = seat_locked(kernels.front()->rank);
  const uint64_t turn = seat.turns++;
  for (const std::shared_ptr<Kernel>& kernel : kernels) {
    kernel->turn = turn;
    seat.under_way.insert(turn);
    for (Operation& one : kernel->operations) {
      const int other = one.place == 0 ? one.match.peer : one.match.root;
      uint64_t& next =
          one.match.kind == Kind::kMessage ? seat.messages[one.place][other] : seat.collectives;
      one.match.number = next++;
    }
  }
}

void Clique::wait_for_turn(const Kernel& kernel) {
  MutexLock lock(mutex_);
  const Seat& seat = seat_locked(kernel.rank);
  while (!seat.is_aborted && *seat.under_way.begin() < kernel.turn) changed_.wait(mutex_);
}

void Clique::come_locked(Operation& operation) {
  const Match match = operation.match;
  std::vector<Operation*>& all = came_[match];
  all.resize(places_of(match, ranks()));
  all[operation.place] = &operation;
  if (std::ranges::find(all, nullptr) != all.end()) return;
  perform(match, all);
  for (Operation* one : all) one->has_met = true;
  came_.erase(match);
  changed_.notify_all();
}

void Clique::run(Kernel& kernel) {
  MutexLock lock(mutex_);
  const Seat& seat = seat_locked(kernel.rank);
  if (!seat.is_aborted) {
    for (Operation& one : kernel.operations) come_locked(one);
  }
  const auto have_all_met = [&] {
    return std::ranges::all_of(kernel.operations, &Operation::has_met);
  };
  while (!seat.is_aborted && !have_all_met()) changed_.wait(mutex_);
  if (have_all_met()) return;
  for (Operation& one : kernel.operations) std::ranges::fill(one.result, device::kPoison);
}

void Clique::finish(const Kernel& kernel) {
  MutexLock lock(mutex_);
  auto& under_way = seat_locked(kernel.rank).under_way;
  under_way.erase(under_way.find(kernel.turn));
  changed_.notify_all();
}

}  // namespace farspan::dist::nccl
