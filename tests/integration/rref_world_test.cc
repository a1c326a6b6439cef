// The rules under test: rref/PROTOCOL.md's two promises, by whole workers under faults: nothing
// dies early, nothing leaks.
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include <gtest/gtest.h>

#include <map>

#include "support/errors.h"
#include "support/world.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using wire::Kind;

struct Thing;
using ThingRef = RRef<std::shared_ptr<Thing>>;

// What the test and its workers share: one of them runs at a time.
struct Job {
  explicit Job(const WorldOptions& options);
  std::vector<std::vector<ThingRef>> pools;  // by rank: what the worker keeps
  std::map<int, int> things;                 // by rank: how many live there
  std::map<Code, int> errors;
  bool deaths = false;
  // A reference that comes twice may be let go of before it comes again.
  bool doubles = false;
  World world;  // its end ends things
};
Job* job = nullptr;
Job::Job(const WorldOptions& options)
    : pools(static_cast<size_t>(options.workers)), world(options) {
  job = this;
}

size_t below(size_t limit) { return job->world.random().below(limit); }
bool chance(double p) { return job->world.random().chance(p); }
int some_rank() { return static_cast<int>(below(static_cast<size_t>(job->world.size()))); }
int here() { return current_worker().rank(); }
std::vector<ThingRef>& pool() { return job->pools[static_cast<size_t>(here())]; }
void pause(Millis time) { Promise<void>().future().wait_for(time); }

// May keep others alive, which are older than it is: there are no circles.
struct Thing {
  explicit Thing(std::vector<ThingRef> others = {})
      : rank(here()), on(job), parts(std::move(others)) {
    ++on->things[rank];
  }
  ~Thing() { --on->things[rank]; }
  int64_t get() { return rank; }
  int64_t fail() { throw std::logic_error("worn out"); }
  std::vector<ThingRef> all_parts() { return parts; }
  std::shared_ptr<Thing> child() { return std::make_shared<Thing>(parts); }
  std::shared_ptr<Thing> no_child() { throw std::runtime_error("no parts"); }

  const int rank;
  Job* const on;
  const std::vector<ThingRef> parts;
};

using ThingPtr = std::shared_ptr<Thing>;
ThingPtr make_thing() { return std::make_shared<Thing>(); }
ThingPtr make_of(const std::vector<ThingRef>& parts) { return std::make_shared<Thing>(parts); }
ThingPtr make_slowly(const ThingRef& part, int64_t ms) {
  pause(Millis(ms));
  return std::make_shared<Thing>(std::vector<ThingRef>{part});
}
ThingPtr cannot_make(int64_t ms) {
  pause(Millis(ms));
  throw std::runtime_error("no parts");
}
int64_t nothing() { return 0; }
Future<ThingPtr> make_later(const ThingRef& part, int64_t by_way_of) {
  Worker& worker = current_worker();
  return worker.rpc_async(static_cast<int>(by_way_of), nothing).then([part, &worker](int64_t) {
    const CurrentWorker current(worker);
    return std::make_shared<Thing>(std::vector<ThingRef>{part});
  });
}
int64_t keep(const std::vector<ThingRef>& refs) {
  pool().insert(pool().end(), refs.begin(), refs.end());
  return 0;
}
int64_t keep_and_fail(const std::vector<ThingRef>& refs) {
  keep(refs);
  throw std::runtime_error("kept, but failed");
}
std::vector<ThingRef> give() {
  if (pool().empty()) return {ThingRef(make_thing())};
  return {pool()[below(pool().size())], ThingRef(make_thing())};
}
std::vector<ThingRef> give_bad() {
  std::vector<ThingRef> refs = give();
  refs.emplace_back();
  return refs;
}
ThingRef pass_through(const ThingRef& ref, int64_t depth) {
  if (depth == 0) return ref;
  return current_worker().rpc_sync(some_rank(), pass_through, ref, depth - 1);
}
int64_t use(const ThingRef& ref) { return ref.rpc_sync(&Thing::get); }
FARSPAN_REGISTER(make_thing, make_of, make_slowly, cannot_make, nothing, make_later, keep,
                 keep_and_fail, give, give_bad, pass_through, use);
FARSPAN_REGISTER_METHODS(Thing, get, fail, all_parts, child, no_child);

std::vector<ThingRef> some_refs() {
  std::vector<ThingRef> refs;
  for (size_t i = below(3); i > 0 && !pool().empty(); --i) {
    refs.push_back(pool()[below(pool().size())]);
  }
  return refs;
}
ThingRef some_ref() {
  return pool().empty() ? ThingRef(make_thing()) : ThingRef(pool()[below(pool().size())]);
}
int64_t some_ms() { return static_cast<int64_t>(below(300)); }

void create(Worker& worker) {
  const int to = some_rank();
  switch (below(6)) {
    case 0:
      return pool().push_back(worker.remote(to, make_thing));
    case 1:
      return pool().push_back(worker.remote(to, make_of, some_refs()));
    case 2:
      return pool().push_back(worker.remote(to, make_slowly, some_ref(), some_ms()));
    case 3:
      return pool().push_back(worker.remote(to, make_later, some_ref(), some_rank()));
    case 4:
      return pool().push_back(worker.remote(to, cannot_make, some_ms()));
    default:
      worker.remote(to, make_of, std::vector<ThingRef>{some_ref(), ThingRef()});
  }
}

void call_method() {
  const ThingRef ref = some_ref();
  switch (below(6)) {
    case 0:
      ref.rpc_sync(&Thing::get);
      return;
    case 1:
      ref.rpc_sync(&Thing::fail);
      return;
    case 2:
      keep(ref.rpc_sync(&Thing::all_parts));
      return;
    case 3:
      return pool().push_back(ref.remote(&Thing::child));
    case 4:
      return pool().push_back(ref.remote(&Thing::no_child).remote(&Thing::child));
    default:
      if (ref.is_owner()) ref.local_value();
  }
}

void call_function(Worker& worker) {
  const int to = some_rank();
  switch (below(8)) {
    case 0:
      worker.rpc_sync(to, keep, some_refs());
      return;
    case 1:
      worker.rpc_async(to, keep, some_refs());  // nobody waits for it
      return;
    case 2:
      worker.rpc_sync(to, keep_and_fail, some_refs());
      return;
    case 3:
      keep(worker.rpc_sync(to, give));
      return;
    case 4:
      keep(worker.rpc_async(to, CallOptions{.timeout = Millis(1 + some_ms())}, give).wait());
      return;
    case 5:
      keep(worker.rpc_sync(to, give_bad));
      return;
    case 6:
      pool().push_back(worker.rpc_sync(to, pass_through, some_ref(), int64_t(below(4))));
      return;
    default:
      worker.rpc_sync(to, use, some_ref());
  }
}

// A value that is counted for a handle here is there. (Others may be gone: the call that was to
// make them failed, say.)
void look_at_one() {
  const ThingRef ref = some_ref();
  if (job->deaths || job->doubles || !ref.confirmed_by_owner()) return;
  try {
    ref.rpc_sync(&Thing::get);
  } catch (const Error& e) {
    const bool about_making = e.operation().find("made by remote") != std::string::npos;
    if (e.code() == Code::kNotFound && !about_making && !job->deaths) ADD_FAILURE() << e.what();
    throw;
  }
}

void live(Worker& worker) {
  for (int i = 0; i < 30; ++i) {
    if (chance(0.5)) pause(Millis(some_ms()));
    if (pool().size() > 8) pool().erase(pool().begin(), pool().begin() + 4);
    try {
      switch (below(4)) {
        case 0:
          create(worker);
          break;
        case 1:
          call_method();
          break;
        case 2:
          look_at_one();
          break;
        default:
          call_function(worker);
      }
    } catch (const Error& e) {
      if (!job->world.network().alive(worker.rank())) return;
      ++job->errors[e.code()];
      const bool expected = e.code() == Code::kTimeout || e.code() == Code::kDisconnected ||
                            e.code() == Code::kUnavailable || e.code() == Code::kRemote ||
                            e.code() == Code::kCancelled || e.code() == Code::kInvalidArgument ||
                            e.code() == Code::kNotFound;
      if (!expected) ADD_FAILURE() << worker.name() << ": " << e.what();
    }
  }
}

void add_faults(World& world) {
  const Loss losses[] = {Loss::kSilent, Loss::kFailsCall, Loss::kBreaksLine};
  for (const Kind kind : {Kind::kCall, Kind::kRemoteCall, Kind::kRRefCall, Kind::kRRefControl}) {
    const auto p = [] { return chance(0.5) ? 0.0 : 0.05; };
    const Micros late = milliseconds(below(3000));
    world.faults().drop(kind, {.probability = p()}, losses[below(3)]);
    world.faults().drop_reply(kind, {.probability = p()}, losses[below(3)]);
    if (job->doubles) {
      world.faults().duplicate(kind, {.probability = p()}, late);
      world.faults().duplicate_reply(kind, {.probability = p()}, late);
    }
    world.faults().fail_in_flight(kind, {.probability = p()}, late);
    world.faults().delay(kind, late, {.probability = p() / 4});
    world.faults().delay_reply(kind, late, {.probability = p() / 4});
  }
}

std::string name(int rank) { return "w" + std::to_string(rank); }

void make_trouble(World& world) {
  const int a = some_rank(), b = some_rank();
  switch (below(6)) {
    case 0:
      if (a != b) world.network().break_line(name(a), name(b));
      break;
    case 1:
      world.network().clog(name(a));
      break;
    case 2:
      world.network().freeze(name(a));
      break;
    case 3:
      if (a != b)
        world.network().partition({name(a)}, {name(b)}, chance(0.5) ? Cut::kSilent : Cut::kNoticed);
      break;
    case 4:
      if (a != 0 && !job->deaths && chance(0.3)) {
        job->deaths = true;
        world.kill(name(a), chance(0.5) ? Sent::kArrives : Sent::kLost);
      }
      break;
    default:
      break;
  }
  world.advance(milliseconds(below(2000)));
  for (int rank = 0; rank < world.size(); ++rank) {
    world.network().unclog(name(rank));
    world.network().thaw(name(rank));
  }
  world.network().heal();
}

void expect_nothing_is_left(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!world.network().alive(rank)) continue;
    const rref::Counters c = RRefTable::of(world[rank]).counters();
    EXPECT_EQ(c.owned + c.forks + c.users + c.pending_children, 0u) << name(rank);
    EXPECT_EQ(c.waits, 0u) << name(rank);
    EXPECT_EQ(c.unacknowledged, 0u) << name(rank);
    EXPECT_EQ(job->things[rank], 0) << name(rank);
  }
  for (const std::string& line : world.held()) ADD_FAILURE() << line;
}

TEST(RRefWorld, KeepsItsPromisesUnderFaults) {
  for_each_seed(100, [](uint64_t seed) {
    Job shared({.workers = 4,
                .seed = seed,
                .settings = {.rpc_timeout = seconds(5)},
                .max_latency = milliseconds(seed % 3),
                .stragglers = seed % 2 == 0});
    World& world = shared.world;
    shared.doubles = seed % 4 == 0;
    // All have met, so all hear of deaths.
    world.run_all([](Worker& worker) {
      for (int to = 0; to < worker.world_size(); ++to) worker.rpc_sync(to, nothing);
    });
    add_faults(world);
    std::vector<Future<void>> ends;
    for (int rank = 0; rank < world.size(); ++rank) {
      ends.push_back(world.start(name(rank), [&, rank] { live(world[rank]); }));
    }
    for (int i = 0; i < 10; ++i) make_trouble(world);
    world.faults().clear();
    for (const auto& end : ends) {
      ASSERT_TRUE(world.run_until([&] { return end.ready(); })) << world.describe();
    }
    world.advance(minutes(1));  // late calls may still fill pools
    for (auto& pool : shared.pools) pool.clear();
    world.advance(minutes(10));
    expect_nothing_is_left(world);
  });
}

// ---- what went wrong once, each by itself ----

TEST(RRefWorld, ACreationHereThatNeverArrivesFails) {
  Job shared({.workers = 2});
  World& world = shared.world;
  world.faults().drop(Kind::kRemoteCall, {.from = "w0", .to = "w0"});
  {
    const auto ref = world["w0"].remote("w0", make_thing);
    EXPECT_THROW(ref.local_value(CallOptions{.timeout = kNoTimeout}), Error);
  }
  expect_nothing_is_left(world);
}

TEST(RRefWorld, AValueIsKeptUntilItsMethodHasRun) {
  Job shared({.workers = 2});
  World& world = shared.world;
  {
    const auto child = world["w0"].remote("w1", make_thing).remote(&Thing::child);
    EXPECT_EQ(child.rpc_sync(&Thing::get), 1);
    ThingRef again = world["w0"].remote("w1", make_thing);
    world.drain();
    // Expect: the owner hears that the handle is gone before a thread takes up the request.
    again = again.remote(&Thing::child);
    EXPECT_EQ(again.rpc_sync(&Thing::get), 1);
  }
  world.drain();
  expect_nothing_is_left(world);
}

// Also when the owner has told the creator of the failure before it takes up the call.
TEST(RRefWorld, AFailedValueIsKnownToItsOwnerAsLongAsItsHandles) {
  for_each_seed(100, [](uint64_t seed) {
    Job shared({.workers = 2, .seed = seed, .max_latency = milliseconds(2)});
    World& world = shared.world;
    {
      const auto failed = world["w0"].remote("w1", cannot_make, 0);
      for (size_t steps = below(20); steps > 0; --steps) world.step();
      const Error error = error_of([&] { failed.rpc_sync(&Thing::get); });
      EXPECT_EQ(error.code(), Code::kRemote) << error.what();
      EXPECT_EQ(error.message(), "no parts");
    }
    world.drain();
    expect_nothing_is_left(world);
  });
}

TEST(RRefWorld, ACreationHereHappensOnce) {
  Job shared({.workers = 2});
  World& world = shared.world;
  world.faults().duplicate(Kind::kRemoteCall);
  {
    const auto ref = world["w0"].remote("w0", make_thing);
    world.drain();
    EXPECT_EQ(shared.things[0], 1);
  }
  expect_nothing_is_left(world);
}

}  // namespace
}  // namespace farspan::testing
