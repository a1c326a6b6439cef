#include <farspan/c10d/base/processors.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "c10d/store/temporary_folder.h"
#include "support/processors.h"

namespace farspan::testing {
namespace {

TEST(Processors, AreThoseThatTheProcessMayUse) {
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(available_processors(), 1);
  EXPECT_LE(available_processors(), all);
  EXPECT_EQ(has_all_processors(), available_processors() == all);
  const auto says_so = [all] {
    stay_on({processors().front()});
    std::_Exit(available_processors() == 1 && has_all_processors() == (all == 1) ? 0 : 1);
  };
  EXPECT_EXIT(says_so(), ::testing::ExitedWithCode(0), "");
}

TEST(Processors, AThreadThatPinsItselfLeavesTheProcessAllOfThem) {
  const int before = available_processors();
  std::thread([&] {
    stay_on({processors().front()});
    EXPECT_EQ(available_processors(), before);
  }).join();
}

class ControlGroups : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.file(name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << '\n';
  }
  int processors() {
    return processors_by_quota(folder_.file("groups").c_str(), folder_.file("mount").c_str());
  }

  const TemporaryFolder folder_;
};

TEST_F(ControlGroups, OfVersionTwoLimitWhatIsInThem) {
  EXPECT_EQ(processors(), INT_MAX) << "nothing is there";
  write("groups", "0::/jobs/one");
  EXPECT_EQ(processors(), INT_MAX);
  write("mount/jobs/one/cpu.max", "max 100000");
  EXPECT_EQ(processors(), INT_MAX);
  write("mount/jobs/one/cpu.max", "250000 100000");
  EXPECT_EQ(processors(), 3);
  write("mount/jobs/cpu.max", "200000 100000");
  EXPECT_EQ(processors(), 2);
  write("mount/cpu.max", "10000 100000");  // all that a container sees
  EXPECT_EQ(processors(), 1);
}

TEST_F(ControlGroups, OfVersionOneLimitWhatIsInThem) {
  write("groups", "9:name=systemd:/\n4:cpuacct,cpu:/jobs\n2:cpuset:/jobs");
  EXPECT_EQ(processors(), INT_MAX);
  write("mount/cpu/jobs/cpu.cfs_quota_us", "-1");
  write("mount/cpu/jobs/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors(), INT_MAX);
  write("mount/cpu/jobs/cpu.cfs_quota_us", "400000");
  EXPECT_EQ(processors(), 4);
  write("mount/cpuacct,cpu/cpu.cfs_quota_us", "150000");
  write("mount/cpuacct,cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(processors(), 2);
  write("mount/cpuset/jobs/cpu.max", "100000 100000");
  EXPECT_EQ(processors(), 2) << "that one has nothing to say of time";
}

}  // namespace
}  // namespace farspan::testing
