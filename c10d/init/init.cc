#include <farspan/c10d/init/init.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include <farspan/c10d/backends/cpu/cpu.h>
#include <farspan/c10d/backends/mpi/mpi.h>
#include <farspan/c10d/backends/nccl/nccl.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/made_here.h>
#include <farspan/c10d/store/generation.h>
#include <farspan/c10d/store/launch_environment.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/rendezvous.h>

namespace farspan::dist {
namespace {

constexpr const char* kJoinedKey = "joined";
// What rank 0, which may host the store, waits for ranks that have not read it yet.
constexpr Millis kFarewell{30'000};
// For the next store, where the one of before has ended while this rank was at it.
constexpr Millis kNextStore{5'000};

// What the default group was made from. The store may live in this process.
struct Joined {
  Rendezvous job;
  std::shared_ptr<Store> store;  // of this start alone; null: the backend needs none
  bool awaits_others = false;    // this rank has joined, and has not yet waited for the rest
};

// Rank 0 may host the store, which the others read until they have joined.
void wait_for_the_last(Joined& made) noexcept {
  if (!std::exchange(made.awaits_others, false) || !made.store || made.job.rank != 0) return;
  try {
    const Deadline deadline = Deadline::after(kFarewell);
    while (made.store->add(kJoinedKey, 0) < made.job.world_size && !deadline.expired()) {
      // No store waits for a number; and the store may not go before a key that the last one sets
      // has been acknowledged to it, which nobody else can see.
      std::this_thread::sleep_for(Millis(5));
    }
  } catch (const Error& error) {
    log(LogLevel::kInfo, "c10d/init", error.what());
  }
}

// At the process's end; a child that was forked only forgets it.
struct Leave {
  MadeHere made;
  void operator()(Joined* joined) const {
    [[maybe_unused]] static Joined* forgotten = nullptr;
    if (made.is_here()) {
      wait_for_the_last(*joined);
      delete joined;
    } else {
      forgotten = joined;
    }
  }
};

Mutex joined_mutex;
std::unique_ptr<Joined, Leave> joined FARSPAN_GUARDED_BY(joined_mutex);

void know_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_backend("cpu", cpu::make_cpu_backend);
    register_backend("mpi", mpi::make_mpi_backend, mpi::meet);
    register_backend(
        "nccl", [](const BackendContext& context) { return nccl::make_nccl_backend(context); });
  });
}

// At the start of the program, so that no other takes their names. One that has done so earlier
// still is told by init_process_group().
const bool backends_known = [] {
  try {
    know_backends();
    return true;
  } catch (const Error&) {
    return false;
  }
}();

RendezvousOptions rendezvous_options(const InitOptions& options) {
  RendezvousOptions where;
  where.rank = options.rank;
  where.world_size = options.world_size;
  where.timeout = options.init_timeout;
  where.store = options.store;
  where.wait_for_workers = false;  // agree_on_generation() does, and names who is missing
  return where;
}

// All ranks, who meet in a store.
GroupSpec meet_in_store(const InitOptions& options, Millis to_reach_it, Deadline deadline,
                        Joined& made) {
  RendezvousOptions where = rendezvous_options(options);
  where.timeout = to_reach_it;
  made.job.rank = -1;  // not known yet
  made.job = rendezvous(options.init_method, where);
  const auto [store, rank, size] = made.job;
  if (!options.store) store->set_timeout(options.init_timeout);
  PrefixStore own("dist", store);
  GroupSpec group;
  group.name = agree_on_generation(own, rank, size, deadline);
  group.rank = rank;
  for (int one = 0; one < size; ++one) group.ranks.push_back(one);
  made.store =
      std::make_shared<PrefixStore>(group.name, std::make_shared<PrefixStore>("dist", store));
  return group;
}

// The store that is there may be that of a group of before, which rank 0 is about to leave, to host
// another one.
GroupSpec meet_in_next_store(const InitOptions& options, Deadline deadline, Joined& made) {
  try {
    return meet_in_store(options, options.init_timeout, deadline, made);
  } catch (const Error& error) {
    const bool has_ended =
        error.code() == Code::kDisconnected || error.code() == Code::kUnavailable;
    if (!has_ended || options.store || made.job.rank == 0 || deadline.expired()) throw;
    log(LogLevel::kInfo, "c10d/init", std::string("looks for the next store: ") + error.what());
    try {
      const auto left = std::chrono::ceil<Millis>(deadline.remaining());
      return meet_in_store(options, std::min(kNextStore, left), deadline, made);
    } catch (const Error& again) {
      if (again.code() != Code::kUnavailable) throw;
    }
    throw;  // there is none
  }
}

// All ranks, whom the backend's launcher has numbered. A process that it does not know is a world
// of one to it, whatever else says that there are more ranks.
GroupSpec meet_by_launcher(const std::string& backend, const MeetRanks& meet,
                           const InitOptions& options, Deadline deadline) {
  const GivenMembership given =
      given_membership(options.store ? RendezvousUrl{} : parse_rendezvous_url(options.init_method),
                       rendezvous_options(options));
  GroupSpec group = meet(deadline);
  const auto check = [&](const std::optional<GivenNumber>& wanted, int found) {
    if (!wanted || wanted->number == found) return;
    throw Error(Code::kInvalidArgument, wanted->where + " is " + std::to_string(wanted->number) +
                                            ", and the launcher of '" + backend + "' says " +
                                            std::to_string(found))
        .advice("start the ranks with that launcher (mpirun -n 2 program), which numbers them");
  };
  check(given.rank, group.rank);
  check(given.world_size, group.size());
  return group;
}

Group join(const std::string& backend, const InitOptions& options, Joined& made) {
  BackendContext context;
  context.deadline = Deadline::in(options.init_timeout);
  if (const MeetRanks meet = meeting_of_backend(backend)) {
    context.group = meet_by_launcher(backend, meet, options, context.deadline);
  } else {
    context.group = meet_in_next_store(options, context.deadline, made);
  }
  context.store = made.store;
  context.bind_host = options.bind_host;
  auto exchange = make_backend(backend, context);
  if (made.store) made.store->add(kJoinedKey, 1);
  made.awaits_others = true;
  const int rank = context.group.rank;
  return std::make_shared<ProcessGroup>(std::move(context.group), rank, std::move(exchange),
                                        options.timeout);
}

}  // namespace

Group init_process_group(const std::string& backend, const InitOptions& options) {
  const TimePoint begun = Clock::now();
  know_backends();
  MutexLock lock(joined_mutex);
  try {
    if (joined) {
      throw Error(Code::kInvalidArgument, "this process has a default group already")
          .advice("call destroy_process_group() first");
    }
    check_backend(backend);
    std::unique_ptr<Joined, Leave> made(new Joined);
    Group group = join(backend, options, *made);
    joined = std::move(made);
    set_default_group(group);
    return group;
  } catch (Error& error) {
    // What was being done says at which place.
    const std::string inner = error.operation();
    throw error.operation("init_process_group" + (inner.empty() ? "" : ", " + inner))
        .elapsed(Clock::now() - begun);
  }
}

bool is_launched() {
  const LaunchEnvironment found = LaunchEnvironment::read();
  return found.rank || found.world_size;
}

void destroy_process_group() {
  MutexLock lock(joined_mutex);
  if (!joined) {
    throw Error(Code::kInvalidArgument, "there is no default group")
        .operation("destroy_process_group")
        .advice("call init_process_group() before, and this once");
  }
  const Group group = set_default_group(nullptr);
  if (joined.get_deleter().made.is_here()) wait_for_the_last(*joined);
  if (group) group->shutdown();
  joined.reset();
}

}  // namespace farspan::dist
