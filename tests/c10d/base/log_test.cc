// The rules under test: c10d/base/log.h.
#include <farspan/c10d/base/log.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace farspan::testing {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    set_log_sink([this](LogLevel, std::string_view room, std::string_view text) {
      lines_.push_back(std::string(room) + ": " + std::string(text));
    });
  }
  ~LogTest() override {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, WritesWhatIsEnabled) {
  set_log_level(LogLevel::kInfo);
  log(LogLevel::kInfo, "net", "hello");
  log(LogLevel::kDebug, "net", "too much");
  EXPECT_EQ(lines_, std::vector<std::string>{"net: hello"});
}

TEST_F(LogTest, OffIsSilent) {
  set_log_level(LogLevel::kOff);
  log(LogLevel::kError, "net", "hello");
  log(LogLevel::kOff, "net", "no level to write at");
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LogTest, AnEmptySinkRestoresStandardError) {
  set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kError, "net", "a line {} with braces");
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(written.find("[net] a line {} with braces"), std::string::npos) << written;
  EXPECT_TRUE(lines_.empty());
}

// In a process of its own, for the environment is read once.
TEST(LogDeathTest, ALevelThatDoesNotExistIsSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("FARSPAN_LOG_LEVEL", "loud", 1);
  EXPECT_EXIT(
      {
        log(LogLevel::kWarning, "net", "hello");
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "FARSPAN_LOG_LEVEL is 'loud'(.|\n)*hello");
  unsetenv("FARSPAN_LOG_LEVEL");
}

}  // namespace
}  // namespace farspan::testing
