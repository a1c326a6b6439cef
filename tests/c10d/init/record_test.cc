// The rules under test: c10d/init/record.h. That torchrun reads it: tests/examples/elastic_*.
#include <farspan/c10d/init/record.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>

#include "c10d/store/temporary_folder.h"

namespace farspan::testing {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;

int64_t seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

class Record : public ::testing::Test {
 protected:
  void SetUp() override { setenv("TORCHELASTIC_ERROR_FILE", file_.c_str(), 1); }
  void TearDown() override {
    unsetenv("TORCHELASTIC_ERROR_FILE");
    set_log_sink({});
  }

  template <class Thrown>
  void throw_in_main(const Thrown& thrown) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(dist::record([&] { throw thrown; }), 1);
    printed_ = ::testing::internal::GetCapturedStderr();
  }

  std::string written() const {
    std::ifstream in(file_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // Of what is written.
  int64_t timestamp() const {
    const std::string text = written();
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("\"timestamp\": \"([0-9]+)\"")));
    return found.empty() ? 0 : std::stoll(found[1]);
  }

  const TemporaryFolder folder_;
  const std::string file_ = folder_.file("error.json");
  std::string printed_;
};

TEST_F(Record, AProgramThatThrowsNothingWritesNothing) {
  bool ran = false;
  EXPECT_EQ(dist::record([&] { ran = true; }), 0);
  EXPECT_TRUE(ran);
  EXPECT_EQ(dist::record([] { return 7; }), 7);
  EXPECT_THAT(written(), IsEmpty());
}

TEST_F(Record, WritesWhatWasThrown) {
  const int64_t begun = seconds_now();
  throw_in_main(Error(Code::kShapeMismatch, "2 rows").operation("sum").advice("add one"));
  EXPECT_EQ(printed_, "SHAPE_MISMATCH: sum: 2 rows; add one\n");
  EXPECT_THAT(timestamp(), AllOf(Ge(begun), Le(seconds_now())));
  EXPECT_EQ(written(), R"({"message": {"message": "SHAPE_MISMATCH: sum: 2 rows; add one", )"
                       R"("extraInfo": {"py_callstack": "SHAPE_MISMATCH: sum: 2 rows; add one", )"
                       R"("timestamp": ")" +
                           std::to_string(timestamp()) + "\"}}}\n");

  throw_in_main(std::out_of_range("index 7"));
  EXPECT_EQ(printed_, "std::out_of_range: index 7\n");
  EXPECT_THAT(written(), HasSubstr(R"("message": "std::out_of_range: index 7")"));
  throw_in_main(42);
  EXPECT_EQ(printed_, "int: an exception that is no std::exception\n");
  // Expect: no half of a file is left beside it.
  const std::filesystem::directory_iterator files(folder_.path()), end;
  EXPECT_EQ(std::distance(files, end), 1);
}

TEST_F(Record, WritesTextAsJsonHasItInAscii) {
  throw_in_main(Error(Code::kInternal, "a \"b\"\\\n\tc \x01 \xc3\xa9 \xf0\x9f\x98\x80"));
  EXPECT_THAT(
      written(),
      HasSubstr(R"(INTERNAL: a \u0022b\u0022\u005c\u000a\u0009c \u0001 \u00e9 \ud83d\ude00")"));
  // Expect: what is no UTF-8 does not get into the file.
  throw_in_main(Error(Code::kInternal, "\xff and \xed\xa0\x80"));
  EXPECT_THAT(written(), HasSubstr(R"(\ufffd and \ufffd)"));
}

TEST_F(Record, AnErrorThatFollowsFromAnotherRanksEndIsWrittenAsALaterOne) {
  for (const Code code : {Code::kDisconnected, Code::kCancelled, Code::kShutdown}) {
    throw_in_main(Error(code, "rank 1 is gone"));
    EXPECT_THAT(timestamp(), AllOf(Ge(seconds_now() + 9), Le(seconds_now() + 10)));
  }
  throw_in_main(Error(Code::kTimeout, "rank 1 did not come"));
  EXPECT_LE(timestamp(), seconds_now());
}

TEST_F(Record, WarnsWhereItCannotWrite) {
  std::string warning;
  set_log_sink([&](LogLevel level, std::string_view, std::string_view text) {
    EXPECT_EQ(level, LogLevel::kWarning);
    warning = text;
  });
  setenv("TORCHELASTIC_ERROR_FILE", (folder_.path() + "/none/error.json").c_str(), 1);
  throw_in_main(std::runtime_error("lost"));
  EXPECT_EQ(printed_, "std::runtime_error: lost\n");
  EXPECT_THAT(warning, HasSubstr("none/error.json.part': No such file or directory"));
}

TEST_F(Record, OutsideOfTorchrunOnlyPrints) {
  unsetenv("TORCHELASTIC_ERROR_FILE");
  throw_in_main(std::runtime_error("lost"));
  EXPECT_EQ(printed_, "std::runtime_error: lost\n");
  EXPECT_THAT(written(), IsEmpty());
}

}  // namespace
}  // namespace farspan::testing
