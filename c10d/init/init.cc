#include <farspan/c10d/init/init.h>

#include <mutex>
#include <utility>

#include <farspan/c10d/backends/cpu/cpu.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/generation.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/rendezvous.h>

namespace farspan::dist {
namespace {

constexpr const char* kJoinedKey = "joined";
// What rank 0, which may host the store, waits for ranks that have not read it yet.
constexpr Millis kFarewell{30'000};

// What the default group was made from. The store may live in this process.
struct Joined {
  Rendezvous job;
  std::shared_ptr<Store> store;  // of this start alone
};

Mutex joined_mutex;
std::unique_ptr<Joined> joined FARSPAN_GUARDED_BY(joined_mutex);

void know_backends() {
  static std::once_flag once;
  std::call_once(once, [] { register_backend("cpu", cpu::make_cpu_backend); });
}

Rendezvous meeting_place(const InitOptions& options) {
  RendezvousOptions where;
  where.rank = options.rank;
  where.world_size = options.world_size;
  where.timeout = options.init_timeout;
  if (!options.store) return rendezvous(options.init_method, where);
  const auto member = membership_of(parse_rendezvous_url("env://"), where);
  return {options.store, member.rank, member.world_size};
}

Group join(const std::string& backend, const InitOptions& options, Joined& made) {
  const Deadline deadline = Deadline::in(options.init_timeout);
  made.job = meeting_place(options);
  const auto [store, rank, size] = made.job;
  PrefixStore own("dist", store);
  const std::string start = agree_on_generation(own, rank, size, deadline);
  made.store = std::make_shared<PrefixStore>(start, std::make_shared<PrefixStore>("dist", store));
  BackendContext context;
  context.store = made.store;
  context.group.name = start;
  context.group.rank = rank;
  for (int one = 0; one < size; ++one) context.group.ranks.push_back(one);
  context.deadline = deadline;
  auto exchange = make_backend(backend, context);
  made.store->add(kJoinedKey, 1);
  return std::make_shared<ProcessGroup>(std::move(context.group), rank, std::move(exchange),
                                        options.timeout);
}

// Rank 0 may host the store, which the others read until they have joined.
void wait_for_the_last(const Joined& made) noexcept {
  if (made.job.rank != 0) return;
  try {
    const Deadline deadline = Deadline::after(kFarewell);
    while (made.store->add(kJoinedKey, 0) < made.job.world_size && !deadline.expired()) {
      std::this_thread::sleep_for(Millis(5));
    }
  } catch (const Error& error) {
    log(LogLevel::kInfo, "c10d/init", error.what());
  }
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
    auto made = std::make_unique<Joined>();
    Group group = join(backend, options, *made);
    joined = std::move(made);
    set_default_group(group);
    return group;
  } catch (Error& error) {
    throw error.operation("init_process_group").elapsed(Clock::now() - begun);
  }
}

bool is_launched() {
  const LaunchEnvironment found = LaunchEnvironment::read();
  return found.rank && found.world_size;
}

void destroy_process_group() {
  MutexLock lock(joined_mutex);
  if (!joined) {
    throw Error(Code::kInvalidArgument, "there is no default group")
        .operation("destroy_process_group");
  }
  const Group group = set_default_group(nullptr);
  wait_for_the_last(*joined);
  if (group) group->shutdown();
  joined.reset();
}

}  // namespace farspan::dist
