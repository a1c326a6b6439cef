// The rules under test: c10d/base/error.h.
#include <farspan/c10d/base/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

namespace farspan::testing {
namespace {

using std::chrono::seconds;

TEST(Error, ReadsAsOneSentence) {
  const Error error = Error(Code::kTimeout, "no reply")
                          .worker("ps")
                          .operation("rpc_sync square")
                          .elapsed(seconds(5))
                          .advice("raise the timeout");
  EXPECT_STREQ(error.what(),
               "TIMEOUT: rpc_sync square on worker 'ps': no reply (after 5.00 s); "
               "raise the timeout");
}

TEST(Error, LeavesOutWhatItWasNotTold) {
  EXPECT_STREQ(Error(Code::kCorrupt, "odd").what(), "CORRUPT: odd");
  EXPECT_STREQ(Error(Code::kCorrupt, "odd").worker("ps").what(), "CORRUPT: worker 'ps': odd");
  EXPECT_STREQ(Error(Code::kCorrupt, "odd").operation("get").what(), "CORRUPT: get: odd");
}

TEST(Error, KeepsTheTrailOfHops) {
  Error error(Code::kRemote, "boom");
  error.trail("worker 'b'").trail("worker 'a'").remote_type("MyError");
  EXPECT_EQ(error.trail(), "worker 'b' <- worker 'a'");
  EXPECT_STREQ(error.what(), "REMOTE: MyError: boom [worker 'b' <- worker 'a']");
}

TEST(Error, ACopyIsIndependent) {
  Error first(Code::kTimeout, "late");
  Error second = first;
  second.worker("ps");
  EXPECT_EQ(first.worker(), "");
  EXPECT_EQ(second.worker(), "ps");
  first = second;
  EXPECT_EQ(first.worker(), "ps");
}

// ThreadSanitizer is the judge: a thread changes its copy after another one has read and dropped
// its own. The flag is relaxed, so that only the Error itself can order the two.
TEST(Error, CopiesMayBeUsedInSeveralThreads) {
  for (int round = 0; round < 100; ++round) {
    Error mine(Code::kTimeout, "late");
    std::atomic<bool> dropped{false};
    std::string seen;
    std::thread other([copy = mine, &dropped, &seen]() mutable {
      seen = copy.what();
      copy = Error(Code::kOk, "");
      dropped.store(true, std::memory_order_relaxed);
    });
    while (!dropped.load(std::memory_order_relaxed)) std::this_thread::yield();
    mine.worker("ps").advice("wait");
    other.join();
    EXPECT_EQ(seen, "TIMEOUT: late");
  }
}

TEST(Error, EveryCodeHasANameAndSurvivesTheWire) {
  for (uint16_t number = 0; number <= static_cast<uint16_t>(Code::kCancelled); ++number) {
    EXPECT_EQ(static_cast<uint16_t>(code_from_wire(number)), number);
    EXPECT_NE(name_of(static_cast<Code>(number)), "UNKNOWN") << number;
  }
}

TEST(Error, TheNumbersOfTheCodesAreFixed) {
  EXPECT_EQ(static_cast<int>(Code::kTimeout), 1);
  EXPECT_EQ(static_cast<int>(Code::kOverloaded), 4);
  EXPECT_EQ(static_cast<int>(Code::kRemote), 11);
  EXPECT_EQ(static_cast<int>(Code::kCancelled), 15);
  EXPECT_EQ(static_cast<int>(Code::kUnknown), 255);
}

TEST(Error, ACodeOfANewerPeerIsUnknown) {
  EXPECT_EQ(code_from_wire(16), Code::kUnknown);
  EXPECT_EQ(code_from_wire(65535), Code::kUnknown);
  EXPECT_EQ(name_of(Code::kUnknown), "UNKNOWN");
}

template <class Thrown>
Error caught(Thrown thrown) {
  return to_error(std::make_exception_ptr(std::move(thrown)), Code::kRemote);
}

TEST(ToError, KeepsAnErrorAsItIs) {
  const Error error = caught(Error(Code::kNotOwner, "not here"));
  EXPECT_EQ(error.code(), Code::kNotOwner);
  EXPECT_EQ(error.message(), "not here");
}

TEST(ToError, NamesTheTypeOfAnException) {
  const Error error = caught(std::out_of_range("index 9"));
  EXPECT_EQ(error.code(), Code::kRemote);
  EXPECT_EQ(error.message(), "index 9");
  EXPECT_EQ(error.remote_type(), "std::out_of_range");
}

TEST(ToError, DescribesWhatIsNoException) {
  EXPECT_EQ(caught(42).remote_type(), "int");
  EXPECT_EQ(to_error(nullptr).code(), Code::kInternal);
}

TEST(Demangle, LeavesWhatIsNoNameAlone) { EXPECT_EQ(demangle("no name!"), "no name!"); }

}  // namespace
}  // namespace farspan::testing
