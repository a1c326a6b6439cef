// URLs and environment variables to a store, a rank and a world size. The rules:
// c10d/store/rendezvous.h.
#include <farspan/c10d/store/rendezvous.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <map>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/hash_store.h>
#include <farspan/c10d/store/tcp_store.h>

#include "c10d/store/reserved_port.h"
#include "c10d/store/temporary_folder.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::error_of;
using testing::ReservedPort;
using testing::TemporaryFolder;

// Options that know no environment, and give up soon.
RendezvousOptions plain(Millis timeout = 20s) {
  RendezvousOptions options;
  options.environment = {};
  options.timeout = timeout;
  return options;
}

// As a launcher would set it for one worker.
RendezvousOptions launched(int rank, int world_size, uint16_t port) {
  RendezvousOptions options = plain();
  options.environment.rank = std::to_string(rank);
  options.environment.world_size = std::to_string(world_size);
  options.environment.master_addr = "127.0.0.1";
  options.environment.master_port = std::to_string(port);
  return options;
}

TEST(Rendezvous, EnvMeetsAtTheMasterWhichRankZeroHosts) {
  const ReservedPort port;
  auto zero = std::async(std::launch::async,
                         [&] { return rendezvous("env://", launched(0, 2, port.number())); });
  const Rendezvous one = rendezvous("env://", launched(1, 2, port.number()));
  EXPECT_EQ(one.rank, 1);
  EXPECT_EQ(one.world_size, 2);
  const Rendezvous first = zero.get();
  EXPECT_EQ(first.rank, 0);
  first.store->set("k", "v");
  EXPECT_EQ(one.store->get("k"), "v");
}

TEST(Rendezvous, TwoPartsOfAProgramMayBothMeetAtTheMaster) {
  const ReservedPort port;
  const Rendezvous rpc = rendezvous("env://", launched(0, 1, port.number()));
  const Rendezvous dist = rendezvous("env://", launched(0, 1, port.number()));
  rpc.store->set("k", "v");
  EXPECT_EQ(dist.store->get("k"), "v");
}

TEST(Rendezvous, WhereTheAgentHostsTheStoreNoWorkerDoes) {
  const auto agent = TcpStoreServer::start();
  RendezvousOptions options = launched(0, 1, agent->port());
  options.environment.agent_hosts_store = true;
  const Rendezvous zero = rendezvous("env://", options);
  EXPECT_FALSE(std::dynamic_pointer_cast<TcpStore>(zero.store)->server());
  // Nor when the same place is written as a URL.
  const std::string url = "tcp://127.0.0.1:" + std::to_string(agent->port());
  const Rendezvous same = rendezvous(url, options);
  EXPECT_FALSE(std::dynamic_pointer_cast<TcpStore>(same.store)->server());
}

TEST(Rendezvous, TheAgentsStoreMeansNothingForAnotherPlace) {
  const ReservedPort other;
  RendezvousOptions options = launched(0, 1, 1);
  options.environment.agent_hosts_store = true;
  const std::string url = "tcp://127.0.0.1:" + std::to_string(other.number());
  const Rendezvous zero = rendezvous(url, options);
  EXPECT_TRUE(std::dynamic_pointer_cast<TcpStore>(zero.store)->server());
}

TEST(Rendezvous, TcpTakesRankAndWorldSizeFromItsUrl) {
  const ReservedPort port;
  const std::string url = "tcp://127.0.0.1:" + std::to_string(port.number());
  auto zero = std::async(std::launch::async,
                         [&] { return rendezvous(url + "?rank=0&world_size=2", plain()); });
  const Rendezvous one = rendezvous(url + "?rank=1&world_size=2&use_libuv=1", plain());
  EXPECT_EQ(one.rank, 1);
  zero.get().store->set("k", "v");
  EXPECT_EQ(one.store->address(), url);
}

TEST(Rendezvous, FileMeetsInAFileThatTheLastRemoves) {
  const TemporaryFolder folder;
  const std::string url = "file://" + folder.file("job");
  {
    RendezvousOptions options = plain();
    options.rank = 0;
    options.world_size = 2;
    const Rendezvous zero = rendezvous(url, options);
    options.rank = 1;
    const Rendezvous one = rendezvous(url, options);
    one.store->set("k", "v");
    EXPECT_EQ(zero.store->get("k"), "v");
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("job")));
}

TEST(Rendezvous, OptionsWinOverTheUrlAndTheUrlOverTheEnvironment) {
  RendezvousOptions options = plain();
  options.environment.rank = "3";
  options.environment.world_size = "4";
  const auto url = parse_rendezvous_url("tcp://h:1?rank=2");
  EXPECT_EQ(membership_of(url, options).rank, 2);
  EXPECT_EQ(membership_of(url, options).world_size, 4);
  options.rank = 1;
  EXPECT_EQ(membership_of(url, options).rank, 1);
}

struct Refused {
  const char* url;
  std::function<void(RendezvousOptions&)> change;
  const char* says;
};

TEST(Rendezvous, WhatIsMissingOrWrongIsNamed) {
  const Refused all[] = {
      {"env://", [](auto& o) { o.environment.rank.reset(); }, "RANK is not set"},
      {"env://", [](auto& o) { o.environment.world_size.reset(); }, "WORLD_SIZE is not set"},
      {"env://", [](auto& o) { o.environment.master_addr.reset(); }, "MASTER_ADDR is not set"},
      {"env://", [](auto& o) { o.environment.master_port.reset(); }, "MASTER_PORT is not set"},
      {"env://", [](auto& o) { o.environment.rank = "two"; }, "RANK is 'two', which is no number"},
      {"env://", [](auto& o) { o.environment.rank = "2"; },
       "RANK is 2, with WORLD_SIZE 2 it must be 0 to 1"},
      {"env://", [](auto& o) { o.environment.rank = "-2"; }, "RANK is -2"},
      {"env://", [](auto& o) { o.environment.world_size = "0"; }, "WORLD_SIZE is 0"},
      {"env://", [](auto& o) { o.environment.world_size = "99999999999"; }, "no number"},
      {"env://", [](auto& o) { o.environment.master_port = "http"; }, "MASTER_PORT is 'http'"},
      {"env://", [](auto& o) { o.environment.master_port = "65536"; }, "MASTER_PORT is '65536'"},
      {"env://somewhere", [](auto&) {}, "env://"},
      {"tcp://localhost", [](auto&) {}, "localhost"},
      {"tcp://localhost:0", [](auto&) {}, "port 0"},
      {"tcp://h:1?rank=x", [](auto&) {}, "rank in the URL is 'x'"},
      {"tcp://h:1?rank", [](auto&) {}, "'rank' in the URL"},
      {"tcp://h:1?worldsize=2", [](auto&) {}, "'worldsize' in the URL is not known"},
      {"file://job", [](auto&) {}, "no absolute path"},
      {"file://", [](auto&) {}, "no absolute path"},
      {"etc://x", [](auto&) {}, "nobody here knows etc://"},
      {"redis://localhost", [](auto&) {}, "the URL names no host:port"},
      {"tcp://u@h:1", [](auto&) {}, "takes no user or password"},
      {"tcp://h:1?rank", [](auto&) {}, "'rank' in the URL is not name=value"},
      {"redis://h:1?rank", [](auto&) {}, "something in the URL is not name=value"},
      {"redis://h:0", [](auto&) {}, "port 0"},
      {"redis://h:1/one", [](auto&) {},
       "what follows host:port/ in the URL is no number of a database"},
      {"redis://h:1/-1", [](auto&) {}, "in the URL is no number of a database"},
      {"redis://h:1?db=1", [](auto&) {}, "'db' in the URL is not known"},
      {"redis://h:1?prefix=a:b", [](auto&) {}, "'a:b' cannot be the prefix"},
      {"redis://h:1?prefix=", [](auto&) {}, "'' cannot be the prefix"},
      {"redis://h:1", [](auto& o) { o.environment.rank.reset(); }, "RANK is not set"},
      {"redis://u:%4@h:1", [](auto&) {}, "'%' in the URL's user or password"},
      {"etcd://h:1/0", [](auto&) {}, "followed by no path"},
      {"etcd://:pw@h:1", [](auto&) {}, "a password for etcd without a user"},
      {"tcp://h:1?prefix=a", [](auto&) {}, "'prefix' in the URL is not known"},
      {"localhost:1234", [](auto&) {}, "is no URL"},
      {"", [](auto&) {}, "is no URL"},
  };
  for (const Refused& refused : all) {
    RendezvousOptions options = launched(1, 2, 1);
    options.timeout = 50ms;
    refused.change(options);
    const Error error = error_of([&] { rendezvous(refused.url, options); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << refused.url;
    if (error.message().find("built without") != std::string::npos) continue;
    EXPECT_THAT(error.what(), HasSubstr(refused.says)) << refused.url;
    EXPECT_FALSE(error.advice().empty()) << refused.url;
  }
}

TEST(Rendezvous, NoErrorShowsThePasswordOfAUrl) {
  for (const char* url : {"redis://u:s3cret@h",
                          "redis://u:s3cret@h:x",
                          "redis:/u:s3cret@h:1",
                          "redis://u:s3cret%@h:1",
                          "redis://u:s3?cr=s3cret@h",
                          "u:s3cret@h:1",
                          "redis://u:s3cret@h:1?prefix=*",
                          "etcd://u:s3cret?s3cret@h:1/0",
                          "etcd://u:s3cret/s3cret@h:1/0",
                          "rediss://u:s3cret@h:1",
                          "redis://u:s3cret",
                          "redis://u:s3cret/0",
                          "redis://u:1/s3cret",
                          "redis://u:s3?cr=s3cret",
                          "redis://u:s3?cret",
                          "redis://u:s3@cret",
                          "redis://h:1?x=s3cret",
                          "redis://u:s3cret@h:1?rank=s3cret@2",
                          "redis:/u:s3cret@h:1?x=http://y",
                          "u:s3cret@h://x",
                          "s3cret@h",
                          "redis:u:s3cret",
                          "REDIS://u:s3cret",
                          "tcp://u:s3cret@h:1",
                          "tcp://u:s3?cret@h:1",
                          "rediss://u:s3cret?s3@h:1"}) {
    const Error error = error_of([&] { rendezvous(url, launched(0, 1, 1)); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << url;
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("s3"))) << url;
  }
}

TEST(Rendezvous, AnAtInAFilesNameIsNoPassword) {
  const TemporaryFolder folder;
  const Rendezvous found =
      rendezvous("file://" + folder.file("a@b") + "?rank=0&world_size=1", launched(0, 1, 1));
  EXPECT_EQ(found.store->address(), "file://" + folder.file("a@b"));
  EXPECT_EQ(parse_rendezvous_url("zk://h:1?x=a@b").query.at("x"), "a@b");
}

TEST(Rendezvous, APasswordComesFromASmallFileOnly) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe"), large = folder.file("large"),
                    empty = folder.file("empty");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(large) << std::string(5'000, 'x');
  std::ofstream(empty) << "\n";
  for (const std::string& path :
       {pipe, large, empty, folder.path(), folder.file("none"), std::string("/dev/zero")}) {
    RendezvousOptions options = launched(0, 1, 1);
    options.environment.store_password_file = path;
    const Error error = error_of([&] { rendezvous("redis://u@h.invalid:1", options); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << path;
    if (error.message().find("built without") != std::string::npos) return;
    EXPECT_THAT(error.message(), HasSubstr(path));
    EXPECT_THAT(error.advice(), HasSubstr("FARSPAN_STORE_PASSWORD_FILE"));
  }
}

TEST(Rendezvous, AStoreThatIsNotThereIsSaidAfterTheTimeout) {
  const ReservedPort port;
  RendezvousOptions options = launched(1, 2, port.number());
  options.timeout = 50ms;
  const Error error = error_of([&] { rendezvous("env://", options); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_GE(error.elapsed(), 50ms);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(port.number())));
  EXPECT_THAT(error.advice(), HasSubstr("MASTER_ADDR"));
}

TEST(Rendezvous, APortInUseIsSaidByRankZero) {
  const auto stranger = TcpStoreServer::start();
  const Error error = error_of([&] { rendezvous("env://", launched(0, 1, stranger->port())); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(stranger->port())));
}

TEST(Rendezvous, OtherSchemesCanBeRegisteredOnce) {
  const auto handler = [](const RendezvousUrl& url, const RendezvousOptions&) {
    EXPECT_EQ(url.place, "somewhere");
    return Rendezvous{std::make_shared<HashStore>(), 4, 5};
  };
  register_rendezvous("test-memory", handler);
  const Rendezvous here = rendezvous("test-memory://somewhere", plain());
  EXPECT_EQ(here.rank, 4);
  EXPECT_EQ(here.store->address(), "memory");
  const Error error = error_of([&] { register_rendezvous("env", handler); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
}

TEST(LaunchEnvironment, IsReadFromTheVariablesOfTheLaunchers) {
  const std::pair<const char*, const char*> variables[] = {{"RANK", "1"},
                                                           {"WORLD_SIZE", "2"},
                                                           {"LOCAL_WORLD_SIZE", ""},
                                                           {"MASTER_ADDR", "host"},
                                                           {"MASTER_PORT", "1234"},
                                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                           {"TORCHELASTIC_ERROR_FILE", "/error"},
                                                           {"FARSPAN_STORE_PASSWORD", "pw"},
                                                           {"FARSPAN_STORE_PASSWORD_FILE", "/pw"}};
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  const LaunchEnvironment found = LaunchEnvironment::read();
  for (const auto& [name, value] : variables) unsetenv(name);
  EXPECT_EQ(found.rank, "1");
  EXPECT_EQ(found.world_size, "2");
  EXPECT_EQ(found.local_world_size, std::nullopt);
  EXPECT_EQ(found.master_addr, "host");
  EXPECT_EQ(found.master_port, "1234");
  EXPECT_TRUE(found.agent_hosts_store);
  EXPECT_EQ(found.error_file, "/error");
  EXPECT_EQ(found.store_password, "pw");
  EXPECT_EQ(found.store_password_file, "/pw");
  EXPECT_FALSE(LaunchEnvironment::read().agent_hosts_store);
}

// As read() finds them.
LaunchEnvironment environment_of(const std::map<std::string, std::string>& variables) {
  return LaunchEnvironment::read_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(LaunchEnvironment, KnowsTheVariablesOfEveryLauncher) {
  const std::map<std::string, std::string> open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                                                       {"OMPI_COMM_WORLD_SIZE", "4"},
                                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                       {"PMIX_ID", "1561001985.3"}};
  const std::map<std::string, std::string> mpich = {
      {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}};
  const std::map<std::string, std::string> slurm = {
      {"SLURM_PROCID", "3"},         {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "8"},
      {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"}};
  for (const auto& variables : {open_mpi, mpich, slurm}) {
    const LaunchEnvironment found = environment_of(variables);
    EXPECT_EQ(found.rank, "3");
    EXPECT_EQ(found.world_size, "4");
    EXPECT_EQ(found.local_world_size, variables.contains("SLURM_PROCID") ? "4" : "2");
    EXPECT_TRUE(found.job);
    EXPECT_FALSE(found.master_addr);
  }
  EXPECT_EQ(environment_of(open_mpi).job, "ompi-1561001985");
  EXPECT_EQ(environment_of(slurm).job, "slurm-77.0");
  // Expect: who sets RANK means it, in whatever job the program runs.
  auto torchrun_in_slurm = slurm;
  torchrun_in_slurm.insert({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(environment_of(torchrun_in_slurm).rank, "1");
  EXPECT_EQ(environment_of(torchrun_in_slurm).world_size, "2");
  EXPECT_FALSE(environment_of(torchrun_in_slurm).job);
  // Expect: a batch script that srun has not started has no rank.
  auto batch_script = slurm;
  batch_script.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_FALSE(environment_of(batch_script).rank);
}

TEST(Rendezvous, RanksOfMpirunOnOneHostMeetWithoutAPlace) {
  const std::string job = "test-" + std::to_string(getpid());
  const auto meet = [&](int rank) {
    RendezvousOptions options = plain();
    options.environment.rank = std::to_string(rank);
    options.environment.world_size = "2";
    options.environment.local_world_size = "2";
    options.environment.job = job;
    return rendezvous("env://", options);
  };
  std::string file;
  {
    const Rendezvous zero = meet(0), one = meet(1);
    zero.store->set("k", "v");
    EXPECT_EQ(one.store->get("k"), "v");
    file = zero.store->address().substr(7);
    struct stat folder {};
    ASSERT_EQ(stat(file.substr(0, file.rfind('/')).c_str(), &folder), 0);
    EXPECT_EQ(folder.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(std::ifstream(file).good()) << "the last one removes it";
}

TEST(Rendezvous, RanksOfMpirunOnSeveralHostsAreToldWhatToSet) {
  RendezvousOptions options = plain();
  options.environment = environment_of({{"OMPI_COMM_WORLD_RANK", "3"},
                                        {"OMPI_COMM_WORLD_SIZE", "4"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const Error error = error_of([&] { rendezvous("env://", options); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("mpirun -x MASTER_ADDR"));
  options.environment.world_size = "two";
  EXPECT_THAT(error_of([&] { rendezvous("env://", options); }).what(),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 'two', which is no number"));
}

}  // namespace
}  // namespace farspan::dist
