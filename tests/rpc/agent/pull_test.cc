// What becomes of reading another process's memory: the errno that its line hears.
#include <farspan/rpc/agent/pull.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

namespace farspan::testing {
namespace {

constexpr uint64_t kMark = 0x1234;

// A process that is there no more.
pid_t ended_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  EXPECT_GT(child, 0);
  waitpid(child, nullptr, 0);
  return child;
}

// What reading an offer of `process` ends with; `hands_over`: nothing of it is read but the mark.
int error_of(pid_t process, const uint64_t& mark, bool hands_over) {
  static const Buffer theirs = Buffer::allocate(4096);
  wire::InFrame frame;
  frame.offer = {1, reinterpret_cast<uintptr_t>(&mark), kMark};
  frame.segments = {Buffer::allocate(theirs.size())};
  frame.offered = {reinterpret_cast<uintptr_t>(theirs.data())};
  if (hands_over) frame.handed_over = {{.block = 1}};
  std::optional<int> result;
  agent::Pull(process, std::move(frame), std::chrono::microseconds(0),
              [&](wire::InFrame, int error) { result = error; })
      .run();
  return result.value();
}

TEST(Pull, EndsWithoutAnErrorWhereTheMarkStands) {
  for (const bool hands_over : {false, true}) EXPECT_EQ(error_of(getpid(), kMark, hands_over), 0);
}

TEST(Pull, SaysThatTheOfferWasWithdrawnWhereTheMarkDoesNotStand) {
  for (const bool hands_over : {false, true}) EXPECT_EQ(error_of(getpid(), 0, hands_over), ESTALE);
}

TEST(Pull, SaysThatTheMemoryCannotBeReadAlsoWhereNothingButTheMarkIs) {
  const pid_t gone = ended_process();
  for (const bool hands_over : {false, true}) EXPECT_EQ(error_of(gone, kMark, hands_over), ESRCH);
}

}  // namespace
}  // namespace farspan::testing
