// The rules under test: rref/rref.h and rref/PROTOCOL.md, "Shutdown", in the World: what a
// reference says meanwhile, and what is said of those that are left.
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <farspan/c10d/base/log.h>

#include "support/world.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

int64_t seventeen() { return 17; }
FARSPAN_REGISTER(seventeen);

TEST(RRefWorld, AReferenceIsConfirmedWhenTheOwnerHasAnswered) {
  for_each_seed(20, [](uint64_t seed) {
    World world({.workers = 2, .seed = seed, .max_latency = milliseconds(2)});
    const auto ref = world["w0"].remote("w1", seventeen);
    EXPECT_FALSE(ref.confirmed_by_owner());  // nothing has moved yet
    world.drain();
    EXPECT_TRUE(ref.confirmed_by_owner());
    EXPECT_EQ(ref.to_here(), 17);
  });
}

TEST(RRefWorld, ACopyThatCannotBeToldOfItsOwnerIsNotConfirmed) {
  World world({.workers = 2});
  world.network().clog("w1");
  const auto ref = world["w0"].remote("w1", seventeen);
  world.drain();
  EXPECT_FALSE(ref.confirmed_by_owner());
  world.network().unclog("w1");
  world.drain();
  EXPECT_TRUE(ref.confirmed_by_owner());
}

// The lines that a block logs.
class LoggedLines {
 public:
  explicit LoggedLines(LogLevel level) {
    set_log_level(level);
    set_log_sink([this](LogLevel at, std::string_view room, std::string_view text) {
      if (room == "rref")
        lines_.push_back((at == LogLevel::kWarning ? "! " : "") + std::string(text));
    });
  }
  ~LoggedLines() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

TEST(RRefShutdown, NamesWhatTheProgramStillHolds) {
  LoggedLines log(LogLevel::kInfo);
  World world({.workers = 2});
  const auto ref = world["w0"].remote("w1", seventeen);
  const RRef<int64_t> own(world["w0"], 18);
  EXPECT_EQ(ref.to_here(), 17);
  world.shutdown();
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("worker 'w0' shuts down while it holds"),
                                          HasSubstr(ref.text()), HasSubstr("seventeen"),
                                          HasSubstr("the value is on rank 1"))));
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("worker 'w0' shuts down while it holds"),
                                          HasSubstr(own.text()), HasSubstr("handles here: 1"))));
  // Expect: it is released all the same, and there is nothing to warn of.
  EXPECT_THAT(log.lines(), Not(Contains(HasSubstr("! "))));
  EXPECT_THAT(world.held(), IsEmpty());
}

TEST(RRefShutdown, IsQuietWhenItAllEndsWell) {
  LoggedLines log(LogLevel::kWarning);
  World world({.workers = 2});
  const auto ref = world["w0"].remote("w1", seventeen);
  world.shutdown();
  EXPECT_THAT(log.lines(), IsEmpty());
}

// w1 never hears that w0 lets go; `first` gives up before the other. Returns what was logged.
std::vector<std::string> lines_when_gives_up(const std::string& first, uint64_t seed) {
  LoggedLines log(LogLevel::kWarning);
  World world({.workers = 2, .seed = seed, .settings = {.shutdown_timeout = seconds(10)}});
  const auto ref = world["w0"].remote("w1", seventeen);
  EXPECT_EQ(ref.to_here(), 17);
  world.drain();
  world.faults().drop(wire::Kind::kRRefControl, {.from = "w0", .to = "w1"});
  const auto end = world.start(first, [] { current_worker().shutdown(); });
  world.advance(seconds(1));
  const auto other = world.start(first == "w0" ? "w1" : "w0", [] { current_worker().shutdown(); });
  world.advance(seconds(20));
  EXPECT_TRUE(end.has_error() && end.error().code() == Code::kTimeout);
  EXPECT_TRUE(other.ready());
  return log.lines();
}

// The seed decides what comes first at the deadline, the wait's end or the protocol's.
TEST(RRefShutdown, WarnsOfWhatCouldNotBeLetGo) {
  for_each_seed(20, [](uint64_t seed) {
    const auto owner = lines_when_gives_up("w1", seed);
    EXPECT_THAT(owner, Contains(HasSubstr("! worker 'w1' leaves 1 remote references behind")));
    EXPECT_THAT(owner, Contains(AllOf(HasSubstr("rref 0/1@1"), HasSubstr("seventeen"),
                                      HasSubstr("kept by handles on rank 0"))));
    EXPECT_THAT(lines_when_gives_up("w0", seed),
                Contains(HasSubstr("! worker 'w0' leaves 0 remote references behind, "
                                   "and 1 messages")));
  });
}

}  // namespace
}  // namespace farspan::testing
