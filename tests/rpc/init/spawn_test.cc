// The rules under test: rpc/init/spawn.h. Each case is a program of its own that spawns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

#include "rpc/init/launch.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string name_of_rank(int64_t rank) {
  return current_worker().worker_info(static_cast<int>(rank)).name;
}
FARSPAN_REGISTER(name_of_rank);

void talk(int rank, int size) {
  init_rpc("w" + std::to_string(rank));
  for (int64_t to = 0; to < size; ++to) {
    const std::string expected = "w" + std::to_string(to);
    if (rpc_sync(static_cast<int>(to), name_of_rank, to) != expected)
      throw std::logic_error("who?");
  }
  shutdown();
}

// Runs spawn(), says what came of it and what it left behind.
int report(int processes, const std::function<void(int, int)>& run) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // what a child leaves behind becomes a child of ours
  int status = 0;
  try {
    spawn(processes, run);
    std::printf("all is well\n");
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
    status = 1;
  }
  int ignored = 0;
  if (waitpid(-1, &ignored, WNOHANG) != -1 || errno != ECHILD) std::printf("a child is left\n");
  return status;
}

// Rank 1 does this; the others wait for it to join.
int report_of_one(const std::function<void()>& wrong) {
  return report(3, [&](int rank, int size) {
    if (rank == 1) wrong();
    talk(rank, size);
  });
}

int spawn_from_a_worker() {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "0", 1);
  init_rpc("w");
  const int status = report(2, talk);
  shutdown();
  return status;
}

Process::End end_of(const std::string& role) {
  Process program(role);
  Process::End end = program.wait(60s);
  EXPECT_THAT(end.output, ::testing::Not(HasSubstr("a child is left")));
  return end;
}

}  // namespace

std::map<std::string, Role> spawn_roles() {
  return {
      {"spawn", [] { return report(3, talk); }},
      {"spawn_none", [] { return report(0, talk); }},
      {"spawn_throw",
       [] { return report_of_one([] { throw std::runtime_error("no data in the folder"); }); }},
      {"spawn_throw_odd", [] { return report_of_one([] { throw 42; }); }},
      {"spawn_exit", [] { return report_of_one([] { _exit(7); }); }},
      {"spawn_killed", [] { return report_of_one([] { raise(SIGKILL); }); }},
      {"spawn_abort", [] { return report_of_one([] { std::abort(); }); }},
      {"spawn_error",
       [] {
         return report_of_one(
             [] { throw Error(Code::kNotFound, std::string(100'000, 'x')).advice("find it"); });
       }},
      {"spawn_all_throw",
       [] {
         return report(4, [](int rank, int) {
           throw std::runtime_error("trouble at " + std::to_string(rank));
         });
       }},
      {"spawn_nested", [] { return report(2, [](int, int) { spawn(2, talk); }); }},
      {"spawn_nested_throw",
       [] {
         return report(2, [](int rank, int) {
           spawn(2, [rank](int inner, int) {
             if (rank == 1 && inner == 1) throw std::runtime_error("deep down");
           });
         });
       }},
      {"spawn_from_a_worker", spawn_from_a_worker},
      {"spawn_forgotten",
       [] {
         return report(
             3, [](int rank, int size) { rank == 1 ? void(init_rpc("w1")) : talk(rank, size); });
       }},
  };
}

namespace {

TEST(Spawn, StartsProcessesThatFindEachOther) {
  const Process::End end = end_of("spawn");
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output, HasSubstr("all is well"));
}

TEST(Spawn, AtLeastOneProcess) {
  EXPECT_THAT(end_of("spawn_none").output, HasSubstr("INVALID_ARGUMENT: spawn: 0 processes"));
}

TEST(Spawn, WhatAProcessThrowsArrives) {
  const Process::End end = end_of("spawn_throw");
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.output,
              AllOf(HasSubstr("REMOTE: spawn: rank 1"), HasSubstr("no data in the folder")));
  EXPECT_THAT(end_of("spawn_throw_odd").output, HasSubstr("REMOTE: spawn: rank 1"));
  // Expect: a text of any length; its end is cut off.
  EXPECT_THAT(end_of("spawn_error").output,
              AllOf(HasSubstr("rank 1"), HasSubstr("NOT_FOUND: xxxx")));
}

TEST(Spawn, AWorkerThatForgetsToShutDownIsNamedWhateverTheOthersSay) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_THAT(end_of("spawn_forgotten").output,
                AllOf(HasSubstr("REMOTE: spawn: rank 1 threw INVALID_ARGUMENT"),
                      HasSubstr("call shutdown() last in every worker")));
  }
}

TEST(Spawn, AnExitStatusArrives) {
  EXPECT_THAT(end_of("spawn_exit").output, HasSubstr("rank 1 ended with status 7"));
}

TEST(Spawn, ASignalThatEndsAProcessIsNamed) {
  EXPECT_THAT(end_of("spawn_killed").output,
              AllOf(HasSubstr("REMOTE: spawn: rank 1 was ended"), HasSubstr("Killed")));
  EXPECT_THAT(end_of("spawn_abort").output,
              AllOf(HasSubstr("REMOTE: spawn: rank 1 was ended"), HasSubstr("Aborted")));
}

TEST(Spawn, WhenAllFailOneIsReported) {
  EXPECT_THAT(end_of("spawn_all_throw").output,
              AllOf(HasSubstr("REMOTE: spawn: rank "), HasSubstr("trouble at ")));
}

TEST(Spawn, AProcessMaySpawnItself) {
  const Process::End end = end_of("spawn_nested");
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end_of("spawn_nested_throw").output,
              AllOf(HasSubstr("REMOTE: spawn: rank 1"), HasSubstr("deep down")));
}

TEST(Spawn, AWorkerMayNotSpawn) {
  EXPECT_THAT(end_of("spawn_from_a_worker").output,
              AllOf(HasSubstr("INVALID_ARGUMENT: spawn"), HasSubstr("before init_rpc")));
}

}  // namespace
}  // namespace farspan::testing
