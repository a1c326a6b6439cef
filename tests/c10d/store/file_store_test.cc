// What is particular to the file store. The rules: c10d/store/README.md, "The file".
#include <farspan/c10d/store/file_store.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <farspan/c10d/base/error.h>

#include "c10d/store/temporary_folder.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using namespace std::chrono_literals;
using testing::error_of;
using testing::TemporaryFolder;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  return all.str();
}

void append(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::app) << bytes;
}

std::string record(const std::string& key, const std::string& value) {
  std::string bytes;
  for (const auto& text : {key, value}) {
    const auto size = static_cast<uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size).append(text);
  }
  return bytes;
}

class FileStoreTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("store");
};

TEST_F(FileStoreTest, RecordsAreThoseOfPyTorch) {
  FileStore store(path_);
  store.set("k", "v");
  store.add("n", 3);
  store.delete_key("k");
  store.append("n", "0");
  EXPECT_EQ(contents(path_), record("refcount/", "1") + record("/k", "v") + record("/n", "3") +
                                 record("-/k", "") + record("/n", "30"));
}

TEST_F(FileStoreTest, ReadsWhatPyTorchWrites) {
  FileStore store(path_);
  append(path_, record("refcount/", "2") + record("/k", "v") + record("/d", "") +
                    record("-/d", "") + record("/n", "41"));
  EXPECT_EQ(store.get("k"), "v");
  EXPECT_EQ(store.add("n", 1), 42);
  EXPECT_THAT(store.list_keys(), UnorderedElementsAre("k", "n"));
}

TEST_F(FileStoreTest, TheLastOfAllRemovesTheFile) {
  {
    FileStore a(path_, 2);
    { FileStore b(path_, 2); }
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, TheFileStaysUntilAsManyAsTheWorldHaveComeAndGone) {
  { FileStore a(path_, 2); }
  EXPECT_EQ(contents(path_),
            record("refcount/", "1") + record("cleanup/", "1") + record("refcount/", "0"));
  { FileStore b(path_, 2); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  { FileStore unlimited(path_); }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, AStoreAndItsClonesCountAsOneAndKeepTheFile) {
  auto store = std::make_shared<FileStore>(path_, 1);
  auto clone = store->clone();
  store.reset();
  clone->set("k", "v");
  EXPECT_EQ(clone->get("k"), "v");
  EXPECT_THAT(contents(path_), ::testing::Not(HasSubstr("cleanup/")));
  clone.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileStoreTest, AStartOfARecordIsNeverSeenAndTheNextWriterCutsItOff) {
  FileStore store(path_);
  store.set("k", "v");
  const std::string whole = contents(path_);
  const std::string lost = record("/lost", "value");
  for (size_t size = 1; size < lost.size(); ++size) {
    append(path_, lost.substr(0, size));
    EXPECT_FALSE(store.check({"lost"}));
    FileStore other(path_);  // writes
    EXPECT_EQ(other.get("k"), "v");
    other.set("n", std::to_string(size));
    EXPECT_EQ(store.get("n"), std::to_string(size));
    EXPECT_THAT(store.list_keys(), UnorderedElementsAre("k", "n"));
  }
}

TEST_F(FileStoreTest, AFileThatIsNoStoreIsRefusedAndLeftAsItIs) {
  const std::string text = "important notes, not a store";
  append(path_, text);
  const Error error = error_of([&] { FileStore store(path_); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr(path_));
  EXPECT_EQ(contents(path_), text);
}

TEST_F(FileStoreTest, AFileThatWasRemovedAndMadeAnewIsReadFromItsBeginning) {
  FileStore store(path_);
  for (int i = 0; i < 10; ++i) store.set("old", std::to_string(i));
  std::filesystem::remove(path_);
  EXPECT_FALSE(store.check({"old"}));
  EXPECT_FALSE(std::filesystem::exists(path_));  // looking makes no file
  FileStore next(path_);
  for (int i = 0; i < 20; ++i) next.set("new", std::to_string(i));
  EXPECT_EQ(store.get("new"), "19");
  EXPECT_FALSE(store.check({"old"}));
}

TEST_F(FileStoreTest, AFullDiskIsAnErrorThatNamesThePathAndTheReason) {
  const Error error = error_of([] { FileStore store("/dev/full"); });
  EXPECT_EQ(error.code(), Code::kOverloaded);
  EXPECT_THAT(error.what(), HasSubstr("/dev/full: No space left on device"));
}

TEST_F(FileStoreTest, AWriteThatStopsInTheMiddleLeavesTheStoreAsItWas) {
  FileStore store(path_);
  store.set("k", "v");
  const std::string before = contents(path_);
  // A limit on the file's size in the middle of the next record, as a full disk would be.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = old;
  low.rlim_cur = before.size() + 500;
  setrlimit(RLIMIT_FSIZE, &low);
  const Error error = error_of([&] { store.set("big", std::string(1000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(error.code(), Code::kOverloaded);
  EXPECT_THAT(error.what(), HasSubstr(path_ + ": File too large"));
  EXPECT_EQ(contents(path_), before);
  store.set("big", "smaller");
  EXPECT_EQ(store.get("big"), "smaller");
}

TEST_F(FileStoreTest, AFolderThatIsNotThereOrAPathThatIsAFolderIsNamed) {
  const Error missing = error_of([&] { FileStore store(folder_.file("no/store")); });
  EXPECT_EQ(missing.code(), Code::kUnavailable);
  EXPECT_THAT(missing.what(), HasSubstr("no/store: No such file or directory"));
  EXPECT_EQ(error_of([&] { FileStore store(folder_.path()); }).code(), Code::kUnavailable);
  EXPECT_EQ(error_of([&] { FileStore store(""); }).code(), Code::kInvalidArgument);
}

TEST_F(FileStoreTest, ALockThatSomebodyKeepsIsATimeoutNotAHang) {
  FileStore store(path_, -1, 50ms);
  const int holder = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(holder, LOCK_EX), 0);
  const Error error = error_of([&] { store.set("k", "v"); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("lock on " + path_));
  close(holder);
  store.set("k", "v");
}

TEST_F(FileStoreTest, AWriterKilledAtAnyMomentLosesNothingThatWasAcknowledged) {
  FileStore store(path_);
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      FileStore writer(path_);
      for (int i = 0;; ++i) {
        writer.multi_set({"a", "b"}, {std::to_string(i), std::string(3000, 'x')});
        if (write(pipe_ends[1], &i, sizeof i) != sizeof i) _exit(1);
      }
    }
    close(pipe_ends[1]);
    int acknowledged = -1, one = 0;
    const int enough = static_cast<int>(random() % 60);
    while (acknowledged < enough && read(pipe_ends[0], &one, sizeof one) == sizeof one) {
      acknowledged = one;
    }
    kill(child, SIGKILL);
    while (read(pipe_ends[0], &one, sizeof one) == sizeof one) acknowledged = one;
    close(pipe_ends[0]);
    waitpid(child, nullptr, 0);
    ASSERT_GE(std::stoi(store.get("a")), acknowledged);
    ASSERT_EQ(store.get("b"), std::string(3000, 'x'));
    ASSERT_THAT(store.list_keys(), UnorderedElementsAre("a", "b"));
  }
}

}  // namespace
}  // namespace farspan::dist
