// The rules under test: c10d/base/log.h.
#include <farspan/c10d/base/log.h>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace farspan::testing
