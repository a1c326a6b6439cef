// The last operations of a group, for a person who asks why it hangs: c10d/group/history.h.
#include <memory>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST_P(CollectiveSuite, TheLastOperationsAreRemembered) {
  on_each(2, [](int) {
    const auto group = dist::default_group();
    for (int i = 0; i < 300; ++i) dist::all_reduce(at::ones({4}));
    const auto records = group->history();
    ASSERT_EQ(records.size(), dist::History::kKept);
    EXPECT_EQ(records.back().signature.sequence, 300u);
    EXPECT_EQ(group->sequence(), 300u);
    EXPECT_THAT(group->dump(), ContainsRegex("call 300: all_reduce SUM of float32 .4., "
                                             "began .* ago, ended .* ago, took "));
  });
}

TEST_P(CollectiveSuite, WhenTheTimeIsOverTheLastOperationsAreLogged) {
  struct Log {  // the sink may outlive this test, in a thread that has yet to end
    Mutex mutex;
    std::string text FARSPAN_GUARDED_BY(mutex);
  };
  const auto log = std::make_shared<Log>();
  set_log_sink([log](LogLevel level, std::string_view room, std::string_view text) {
    if (level != LogLevel::kWarning || room != "c10d/group") return;
    MutexLock lock(log->mutex);
    log->text += text;
  });
  on_each(2, [&](int rank) {
    dist::barrier();
    if (rank == 1) return;
    const Error error = error_of(
        [&] { dist::all_reduce(at::ones({3}), {.timeout = std::chrono::milliseconds(200)}); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    MutexLock lock(log->mutex);
    EXPECT_THAT(log->text, HasSubstr("the default group ('" + dist::default_group()->name() +
                                     "'), rank 0 of 2, "));
    EXPECT_THAT(log->text, ContainsRegex("  call 1: barrier, "
                                         "began .* ago, ended .* ago, took .*s\n"));
    EXPECT_THAT(log->text, HasSubstr("  call 2: all_reduce SUM of float32 [3], running for "));
  });
  set_log_sink(nullptr);
}

}  // namespace
}  // namespace farspan::testing
