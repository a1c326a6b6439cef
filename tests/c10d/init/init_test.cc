// The rule under test: c10d/init/init.h.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include <cstdlib>
#include <fstream>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/init/init.h>
#include <farspan/c10d/store/hash_store.h>

#include "c10d/init/alone.h"
#include "c10d/store/reserved_port.h"
#include "c10d/store/store_server.h"
#include "c10d/store/temporary_folder.h"
#include "support/errors.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

TEST(IsLaunched, OneOfTheVariablesIsEnough) {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    for (const char* other :
         {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
      unsetenv(other);  // these tests may run under a launcher
    }
    EXPECT_FALSE(dist::is_launched());
    setenv(name, "1", 1);
    EXPECT_TRUE(dist::is_launched()) << name;
    unsetenv(name);
  }
}

// c10d/FindLibUv.cmake: of the two copies in this process each has its own users.
TEST(Libuv, IsNotTheCopyThatLibTorchExports) {
  Dl_info place{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&uv_run), &place), 0);
  EXPECT_THAT(place.dli_fname, Not(HasSubstr("libtorch")));
}

// By name, and who has come says so: not only how many.
TEST(InitProcessGroup, OfTwoRanksTheOneThatDoesNotComeIsNamed) {
  dist::InitOptions options;
  options.rank = 0;
  options.world_size = 2;
  const ReservedPort port;
  options.init_method = "tcp://127.0.0.1:" + std::to_string(port.number());
  options.init_timeout = 1s;
  const Error error = error_of([&] { dist::init_process_group("cpu", options); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 of 2 did not come"));
}

TEST(InitProcessGroup, AdviceNamesWhatTheCallerHas) {
  dist::InitOptions options;
  options.init_method = "tcp://127.0.0.1";
  EXPECT_THAT(error_of([&] { dist::init_process_group("cpu", options); }).what(),
              HasSubstr("'127.0.0.1': the port is missing"));
  options.init_method = "tcp://127.0.0.1:1";
  const Error error = error_of([&] { dist::init_process_group("cpu", options); });
  EXPECT_THAT(error.what(), HasSubstr("RANK is not set"));
  EXPECT_THAT(error.what(), HasSubstr("?rank=0&world_size=2"));
  EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("MASTER_ADDR")));
}

TEST(InitProcessGroup, AWorldOfOneWorks) {
  EXPECT_FALSE(dist::is_initialized());
  const dist::Group group = dist::init_process_group("cpu", alone());
  EXPECT_TRUE(dist::is_initialized());
  EXPECT_EQ(dist::default_group(), group);
  EXPECT_EQ(dist::get_rank(), 0);
  EXPECT_EQ(dist::get_world_size(), 1);
  const at::Tensor x = at::full({3}, 2.0), list = at::zeros({1, 3});
  dist::all_reduce(x, {.op = dist::ReduceOp::kAvg});
  dist::all_gather_into_tensor(list, x);
  EXPECT_TRUE(at::equal(list[0], at::full({3}, 2.0)));
  dist::barrier();
  dist::destroy_process_group();
  EXPECT_FALSE(dist::is_initialized());
}

TEST(InitProcessGroup, OperationsHaveHalfAnHourUnlessSaidOtherwise) {
  EXPECT_EQ(dist::init_process_group("cpu", alone())->timeout(), 30min);
  EXPECT_EQ(dist::new_group({0})->timeout(), 30min);
  EXPECT_EQ(dist::new_group({0}, 5s)->timeout(), 5s);
  dist::destroy_process_group();
  dist::InitOptions options = alone();
  options.timeout = 7s;
  EXPECT_EQ(dist::init_process_group("cpu", options)->timeout(), 7s);
  EXPECT_EQ(dist::new_group({0})->timeout(), 7s);
  dist::destroy_process_group();
}

TEST(InitProcessGroup, OneAfterTheOther) {
  const auto options = alone();  // with one store
  for (int start = 0; start < 3; ++start) {
    dist::init_process_group("cpu", options);
    const Error error = error_of([&] { dist::init_process_group("cpu", options); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("has a default group already"));
    dist::destroy_process_group();
  }
  EXPECT_EQ(code_of([] { dist::destroy_process_group(); }), Code::kInvalidArgument);
}

TEST(InitProcessGroup, GroupsOutliveTheDefaultOneTheyWereMadeOf) {
  dist::init_process_group("cpu", alone());
  const dist::Group group = dist::new_group({0});
  dist::destroy_process_group();
  const at::Tensor x = at::ones({3});
  dist::all_gather_into_tensor(x, at::full({3}, 2.0), {.group = group});
  EXPECT_EQ(x.sum().item<float>(), 6);
}

TEST(InitProcessGroup, WhatIsWrongIsNamed) {
  const Error none = error_of([] { dist::barrier(); });
  EXPECT_EQ(none.code(), Code::kInvalidArgument);
  EXPECT_THAT(none.what(), HasSubstr("init_process_group()"));

  const Error backend = error_of([] { dist::init_process_group("gloo", alone()); });
  EXPECT_EQ(backend.code(), Code::kInvalidArgument);
  EXPECT_THAT(backend.what(), HasSubstr("no backend 'gloo'"));
  EXPECT_THAT(backend.what(), HasSubstr("cpu"));

  auto options = alone();
  options.rank = 2;
  EXPECT_EQ(code_of([&] { dist::init_process_group("cpu", options); }), Code::kInvalidArgument);

  options = alone();
  options.world_size = 3;
  options.init_timeout = 100ms;
  const Error missing = error_of([&] { dist::init_process_group("cpu", options); });
  EXPECT_EQ(missing.code(), Code::kTimeout);
  EXPECT_THAT(missing.what(), HasSubstr("ranks 1, 2 of 3 did not come"));
  EXPECT_FALSE(dist::is_initialized());
}

// A process of three: reduces, and leaves at once.
int sum_of_ranks() {
  dist::InitOptions options;
  if (const char* method = std::getenv("INIT_METHOD")) options.init_method = method;
  dist::init_process_group("cpu", options);
  const at::Tensor x = at::full({2}, dist::get_rank() + 1.0);
  dist::all_reduce(x);
  const dist::Group others = dist::new_group({0, 2});
  if (others->rank() >= 0) dist::all_reduce(x, {.group = others});
  std::printf("sum %g\n", x[0].item<double>());
  dist::destroy_process_group();
  return 0;
}

// A process of three, the first of which forks: what the child has copies of, and ends, is not its.
int fork_in_between() {
  dist::InitOptions options;
  options.init_method = std::getenv("INIT_METHOD");
  dist::init_process_group("cpu", options);
  auto all = dist::new_group({0, 1, 2});
  const int rank = dist::get_rank();
  const at::Tensor x = at::ones({2});
  const auto use = [&] {
    dist::all_reduce(x);
    dist::all_reduce(x, {.group = all});
    const dist::Work sent = dist::isend(x, (rank + 1) % 3);
    dist::recv(at::ones({2}), (rank + 2) % 3);
    sent.wait();
  };
  use();
  if (rank == 0) {
    const pid_t child = fork();
    if (child == 0) {
      all->shutdown();
      all.reset();
      dist::destroy_process_group();
      std::exit(7);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 1;
  }
  use();
  std::printf("sum %g\n", x[0].item<double>());
  return 0;
}

// A process of three that joins again and again, each time where rank 0 hosts another store.
int join_again() {
  dist::InitOptions options;
  options.init_method = std::getenv("INIT_METHOD");
  double sum = 0;
  for (int start = 0; start < 9; ++start) {
    dist::init_process_group("cpu", options);
    const at::Tensor x = at::ones({2});
    dist::all_reduce(x);
    sum += x[0].item<double>();
    dist::destroy_process_group();
  }
  std::printf("sum %g\n", 3 * sum);
  return 0;
}

// A process of three that ends as soon as it has joined.
int join_and_end() {
  dist::InitOptions options;
  options.init_method = std::getenv("INIT_METHOD");
  dist::init_process_group("cpu", options);
  std::puts("sum 81");
  return 0;
}

void expect_to_meet(const Process::Environment& place, const std::string& role = "sum_of_ranks") {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1", "2"}) {
    auto environment = place;
    environment["WORLD_SIZE"] = "3";
    environment["RANK"] = rank;
    if (place.contains("FARSPAN_HOST_ID")) environment["FARSPAN_HOST_ID"] = rank;
    ranks.push_back(std::make_unique<Process>(role, environment));
  }
  for (const auto& rank : ranks) {
    const Process::End end = rank->wait(60s);
    EXPECT_EQ(end.status, 0) << end.output;
    const char* const sum = rank == ranks[1] ? "sum 6" : "sum 12";
    EXPECT_THAT(end.output, HasSubstr(role == "sum_of_ranks" ? sum : "sum 81"));
  }
}

TEST(InitProcessGroup, AForkedChildThatEndsIsNotTakenForItsParent) {
  const TemporaryFolder folder;
  Process::Environment place = {{"INIT_METHOD", "file://" + folder.file("meet")},
                                {"ASAN_OPTIONS", "detect_leaks=0"}};  // of the child's lost threads
  expect_to_meet(place, "fork_in_between");
  const ReservedPort port;
  place["INIT_METHOD"] = "tcp://127.0.0.1:" + std::to_string(port.number());
  place["FARSPAN_HOST_ID"] = "its own";
  expect_to_meet(place, "fork_in_between");
}

TEST(InitProcessGroup, ProcessesMeetAgainAtTheSameAddress) {
  const ReservedPort port;
  expect_to_meet({{"INIT_METHOD", "tcp://127.0.0.1:" + std::to_string(port.number())}},
                 "join_again");
}

TEST(InitProcessGroup, TheStoreIsThereUntilAllHaveJoinedAlsoIfItsHostEnds) {
  for (int start = 0; start < 10; ++start) {
    const ReservedPort port;
    expect_to_meet({{"INIT_METHOD", "tcp://127.0.0.1:" + std::to_string(port.number())}},
                   "join_and_end");
  }
}

TEST(InitProcessGroup, ProcessesMeetInAFile) {
  const TemporaryFolder folder;
  expect_to_meet({{"INIT_METHOD", "file://" + folder.file("meet")}});
}

TEST(InitProcessGroup, ProcessesMeetAtAnAddress) {
  const ReservedPort port;
  expect_to_meet({{"INIT_METHOD", "tcp://127.0.0.1:" + std::to_string(port.number())}});
}

TEST(InitProcessGroup, ProcessesMeetWhereTheEnvironmentSays) {
  const ReservedPort port;
  expect_to_meet({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port.number())}});
}

// Which outlives the job: the second one finds what the first has left.
void expect_to_meet_in_server(StoreServer::Kind kind, const std::string& scheme) {
  const StoreServer server(kind);
  const std::string method = scheme + server.place() + "?prefix=job";
  for (int start = 0; start < 2; ++start) expect_to_meet({{"INIT_METHOD", method}});
}

TEST(InitProcessGroup, ProcessesMeetInRedis) {
  const std::string missing = StoreServer::missing(StoreServer::Kind::kRedis);
  if (!missing.empty()) GTEST_SKIP() << missing;
  expect_to_meet_in_server(StoreServer::Kind::kRedis, "redis://");
}

TEST(InitProcessGroup, ProcessesMeetInEtcd) {
  const std::string missing = StoreServer::missing(StoreServer::Kind::kEtcd);
  if (!missing.empty()) GTEST_SKIP() << missing;
  expect_to_meet_in_server(StoreServer::Kind::kEtcd, "etcd://");
}

using Server = StoreServer::Kind;

class InitInServerWithPassword : public ::testing::TestWithParam<Server> {
 protected:
  void SetUp() override {
    const std::string missing = StoreServer::missing(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  // The first line of a file is the password.
  void write_password(const std::string& password) {
    std::ofstream(folder_.file("password")) << password << "\n";
  }
  Process::Environment with_file(const PasswordServer& with) const {
    const std::string scheme = GetParam() == Server::kRedis ? "redis" : "etcd";
    return {{"INIT_METHOD", scheme + "://alice@" + with.server.place() + "?prefix=job"},
            {"FARSPAN_STORE_PASSWORD_FILE", folder_.file("password")}};
  }

 private:
  const TemporaryFolder folder_;
};

TEST_P(InitInServerWithPassword, ProcessesMeet) {
  const PasswordServer with(GetParam());
  write_password(PasswordServer::kPassword);
  expect_to_meet(with_file(with));
  // The variable comes first.
  write_password("wr0ng");
  Process::Environment both = with_file(with);
  both["FARSPAN_STORE_PASSWORD"] = PasswordServer::kPassword;
  expect_to_meet(both);
}

TEST_P(InitInServerWithPassword, AWrongPasswordIsSaidSoonAndNotShown) {
  const PasswordServer with(GetParam());
  write_password("wr0ng");
  Process::Environment environment = with_file(with);
  environment["WORLD_SIZE"] = "3";
  environment["RANK"] = "1";
  Process rank("sum_of_ranks", environment);
  const Process::End end = rank.wait(20s);  // though others do not come for half an hour
  EXPECT_EQ(end.status, 1);
  EXPECT_THAT(end.output, HasSubstr("INVALID_ARGUMENT: init_process_group"));
  EXPECT_THAT(end.output, HasSubstr(with.server.place()));
  EXPECT_THAT(end.output, ::testing::ContainsRegex("correct the .*password"));
  EXPECT_THAT(end.output, ::testing::Not(HasSubstr("wr0ng")));
}

INSTANTIATE_TEST_SUITE_P(Servers, InitInServerWithPassword,
                         ::testing::Values(Server::kRedis, Server::kEtcd), [](const auto& kind) {
                           return kind.param == Server::kRedis ? "Redis" : "Etcd";
                         });

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  auto roles = farspan::testing::StoreServer::roles();
  roles["sum_of_ranks"] = farspan::testing::sum_of_ranks;
  roles["fork_in_between"] = farspan::testing::fork_in_between;
  roles["join_again"] = farspan::testing::join_again;
  roles["join_and_end"] = farspan::testing::join_and_end;
  return farspan::testing::run_tests(argc, argv, roles);
}
