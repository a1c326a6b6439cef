// Bad input at the front door: one clear error each, soon, that says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include "c10d/store/reserved_port.h"
#include "rpc/init/launch.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Names = std::vector<std::string>;

constexpr Clock::duration kSoon = 20s;    // on a machine that is busy with other things
constexpr Clock::duration kItsEnd = 60s;  // a process's, which has to load LibTorch first

struct Expected {
  Code code;
  std::vector<std::string> texts;  // in what the user reads
};

// Joining with these variables fails so; nothing stays behind that would keep the next one out.
void expect_refusal(const Process::Environment& variables, const Expected& expected,
                    const std::string& name = "w", WorkerOptions options = {}) {
  const LaunchVariables set(variables);
  const TimePoint begun = Clock::now();
  if (options.init_timeout == WorkerOptions().init_timeout) options.init_timeout = 2s;
  try {
    init_rpc(name, options);
    shutdown(false);
    ADD_FAILURE() << "it joined";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), expected.code) << e.what();
    for (const std::string& text : expected.texts) EXPECT_THAT(e.what(), HasSubstr(text));
    EXPECT_FALSE(e.operation().empty()) << e.what();
    EXPECT_FALSE(e.advice().empty()) << e.what();
  }
  EXPECT_LT(Clock::now() - begun, kSoon);
}

Process::Environment good() {
  return {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "0"}};
}
Process::Environment without(const std::string& name) {
  auto variables = good();
  variables.erase(name);
  return variables;
}
Process::Environment with(const std::string& name, const std::string& value) {
  auto variables = good();
  variables[name] = value;
  return variables;
}

// A port of the loopback that is bound; and listened on, or not.
class Port {
 public:
  explicit Port(bool listens) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_TRUE(!listens || listen(fd_.get(), 8) == 0);
    number_ = std::to_string(ntohs(address.sin_port));
  }
  const std::string& number() const { return number_; }

 private:
  net::OwnedDescriptor fd_;
  std::string number_;
};

TEST(FrontDoor, WithGoodInputOneMayEnterAndLeaveAgain) {
  const LaunchVariables set(good());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(init_rpc("alone")->name(), "alone");
    shutdown();
  }
}

TEST(FrontDoor, AVariableThatIsMissingIsNamed) {
  for (const std::string& name : Names{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_refusal(without(name), {Code::kInvalidArgument, {name + " is not set", "torchrun"}});
    expect_refusal(with(name, ""), {Code::kInvalidArgument, {name + " is not set"}});
  }
  expect_refusal({}, {Code::kInvalidArgument, {"RANK is not set"}});
}

TEST(FrontDoor, ANumberThatIsNoneIsQuoted) {
  for (const std::string& name : Names{"RANK", "WORLD_SIZE", "MASTER_PORT"}) {
    for (const std::string& value : Names{"one", "1x", " 1", "1.5", "99999999999999999999"}) {
      expect_refusal(with(name, value), {Code::kInvalidArgument, {name, "'" + value + "'"}});
    }
  }
  expect_refusal(with("MASTER_PORT", "65536"), {Code::kInvalidArgument, {"MASTER_PORT", "65536"}});
}

TEST(FrontDoor, ARankOutOfRangeIsToldTheRange) {
  for (const std::string& rank : Names{"1", "7", "-1", "-2"}) {
    expect_refusal(with("RANK", rank),
                   {Code::kInvalidArgument, {"RANK is " + rank, "WORLD_SIZE 1", "0 to 0"}});
  }
  for (const std::string& size : Names{"0", "-3"}) {
    expect_refusal(with("WORLD_SIZE", size),
                   {Code::kInvalidArgument, {"WORLD_SIZE is " + size, "at least 1"}});
  }
  WorkerOptions options;
  options.rank = 5;
  options.world_size = 2;
  expect_refusal({}, {Code::kInvalidArgument, {"rank is 5", "0 to 1"}}, "w", options);
}

TEST(FrontDoor, AStoreThatIsNotThereIsNamedWithItsAddress) {
  const Port nobody(false);
  expect_refusal({{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", nobody.number()}},
                 {Code::kUnavailable, {"127.0.0.1:" + nobody.number(), "no store there"}});
  expect_refusal({{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "no-such-host.invalid"},
                  {"MASTER_PORT", nobody.number()}},
                 {Code::kUnavailable, {"no-such-host.invalid"}});
}

TEST(FrontDoor, SomethingElseAtTheStoresPlaceIsNotWaitedForForEver) {
  const Port silent(true);  // accepts, and says nothing
  expect_refusal({{"RANK", "1"},
                  {"WORLD_SIZE", "2"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", silent.number()}},
                 {Code::kUnavailable, {"127.0.0.1:" + silent.number(), "no answer"}});
}

TEST(FrontDoor, APortInUseIsNamed) {
  const Port taken(true);
  expect_refusal(with("MASTER_PORT", taken.number()),
                 {Code::kAlreadyExists, {"127.0.0.1:" + taken.number(), "in use"}});
}

TEST(FrontDoor, AUrlThatNobodyUnderstandsIsQuoted) {
  WorkerOptions options;
  for (const auto& [url, text] :
       std::map<std::string, std::string>{{"localhost:29500", "is no URL"},
                                          {"gopher://x", "gopher://"},
                                          {"file://relative", "absolute"},
                                          {"tcp://127.0.0.1", "127.0.0.1"},
                                          {"tcp://127.0.0.1:0?rnak=1", "'rnak'"}}) {
    options.init_method = url;
    expect_refusal(good(), {Code::kInvalidArgument, {text}}, "w", options);
  }
}

TEST(FrontDoor, ANameMustBeOne) {
  for (const std::string& name : {std::string(), std::string("two words"), std::string("a/b"),
                                  std::string("caf\xc3\xa9"), std::string(129, 'x')}) {
    expect_refusal(good(), {Code::kInvalidArgument, {"no name for a worker"}}, name);
  }
}

TEST(FrontDoor, ATransportMustBeOne) {
  WorkerOptions options;
  options.transports = {"carrier-pigeon"};
  expect_refusal(good(),
                 {Code::kInvalidArgument, {"'carrier-pigeon'", "shm, unix, tcp or loopback"}}, "w",
                 options);
}

TEST(FrontDoor, OneProcessJoinsOnce) {
  const LaunchVariables set(good());
  init_rpc("first");
  const Error error = error_of([] { init_rpc("second"); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("worker already"), HasSubstr("shutdown()")));
  shutdown();
}

TEST(FrontDoor, WithoutInitRpcNothingIsThereToCall) {
  for (const auto& use :
       std::vector<std::function<void()>>{[] { current_worker(); }, [] { shutdown(); }}) {
    const Error error = error_of(use);
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("init_rpc(name)"));
  }
}

// From here on it takes several processes.

void expect_failure(Process& process, const std::vector<std::string>& texts) {
  const Process::End end = process.wait(kItsEnd);
  EXPECT_EQ(end.status, 1) << end.output;
  for (const std::string& text : texts) EXPECT_THAT(end.output, HasSubstr(text));
}

TEST(FrontDoor, TwoOfOneNameAreBothTold) {
  Launch launch;
  Process& first = launch.start("join", 0, 2, {{"TEST_NAME", "trainer"}});
  Process& second = launch.start("join", 1, 2, {{"TEST_NAME", "trainer"}});
  for (Process* process : {&first, &second}) {
    expect_failure(*process, {"ALREADY_EXISTS: init_rpc", "ranks 0 and 1 are both called 'trainer'",
                              "a name of its own"});
  }
}

// Wherever the store is: at one that does not join, or at one that is told.
TEST(FrontDoor, TheOthersAreToldWhoseNameIsTaken) {
  for (const int other_rank : {0, 1}) {
    const ReservedPort port;
    Launch launch;
    std::vector<Process*> workers;
    for (int rank = 0; rank < 4; ++rank) {
      const std::string name = rank == other_rank ? "ps" : rank == 3 ? "last" : "trainer";
      workers.push_back(&launch.start("join", rank, 4,
                                      {{"TEST_NAME", name},
                                       {"TEST_TIMEOUT_MS", "60000"},
                                       {"MASTER_PORT", std::to_string(port.number())},
                                       {"TORCHELASTIC_USE_AGENT_STORE", ""}}));
    }
    for (const int rank : {other_rank, 3}) {
      expect_failure(*workers[static_cast<size_t>(rank)],
                     {"UNAVAILABLE: init_rpc: worker 'trainer' (rank ", "does not join",
                      " are both called 'trainer'", "mend that there"});
    }
    for (const int rank : {1 - other_rank, 2}) {
      expect_failure(*workers[static_cast<size_t>(rank)], {"ALREADY_EXISTS: init_rpc"});
    }
  }
}

TEST(FrontDoor, TwoOfOneRankAreTold) {
  Launch launch;
  Process& leader = launch.start("join", 0, 2, {{"TEST_TIMEOUT_MS", "4000"}});
  Process& first = launch.start("join", 1, 2, {{"TEST_TIMEOUT_MS", "4000"}});
  Process& second = launch.start("join", 1, 2, {{"TEST_TIMEOUT_MS", "4000"}});
  // Expect: whoever got in got in alone, or nobody did. One hears of it by name, or, when it came
  // after the others had begun, that it is too late.
  const Process::End ends[] = {leader.wait(kItsEnd), first.wait(kItsEnd), second.wait(kItsEnd)};
  EXPECT_NE(ends[1].status + ends[2].status, 0);
  EXPECT_THAT(ends[1].output + ends[2].output,
              AnyOf(AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("rank 1")),
                    HasSubstr("has the job begun without this worker")));
}

TEST(FrontDoor, WorkersThatDoNotAgreeOnTheirNumberAreTold) {
  Launch launch;
  Process& two = launch.start("join", 0, 2, {{"TEST_TIMEOUT_MS", "60000"}});
  Process& three = launch.start("join", 1, 3, {{"TEST_TIMEOUT_MS", "60000"}});
  expect_failure(two, {"INVALID_ARGUMENT", "WORLD_SIZE"});
  expect_failure(three, {"INVALID_ARGUMENT", "WORLD_SIZE"});
}

TEST(FrontDoor, WhoDoesNotComeIsNamed) {
  Launch launch;
  Process& leader = launch.start("join", 0, 3, {{"TEST_TIMEOUT_MS", "10000"}});
  Process& other = launch.start("join", 2, 3, {{"TEST_TIMEOUT_MS", "10000"}});
  expect_failure(leader, {"TIMEOUT", "rank 1"});
  expect_failure(other, {"TIMEOUT"});
}

TEST(FrontDoor, AFunctionThatOnlyOneProgramHasIsNamed) {
  Launch launch;
  Process& caller = launch.start("call_what_is_missing", 0, 2);
  Process& callee = launch.start("lacks_functions", 1, 2);
  const Process::End end = caller.wait(kItsEnd);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output, AllOf(HasSubstr("NOT_REGISTERED: rpc_sync only_here on worker 'w1'"),
                                HasSubstr("worker 'w1' has no function 'only_here'"),
                                HasSubstr("FARSPAN_REGISTER(only_here)")));
  // Expect: the same name with another signature shows both.
  EXPECT_THAT(end.output, AllOf(HasSubstr("NOT_REGISTERED: rpc_sync differs on worker 'w1'"),
                                HasSubstr("string(string) there, int64(int64) at the caller"),
                                HasSubstr("build both programs from the same sources")));
  // Expect: an unknown worker is answered with those there are.
  EXPECT_THAT(end.output, AllOf(HasSubstr("rpc_sync name_here: there is no worker called 'w7'"),
                                HasSubstr("'w0' (rank 0), 'w1' (rank 1)")));
  EXPECT_EQ(callee.wait(kItsEnd).status, 0) << callee.output();
}

TEST(FrontDoor, WorkersWithoutACommonTransportAreTold) {
  Launch launch;
  Process& caller = launch.start("call_over_tcp_only", 0, 2);
  Process& callee = launch.start("unix_only", 1, 2);
  const Process::End end = caller.wait(kItsEnd);
  EXPECT_THAT(end.output, AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("on worker 'w1'"),
                                HasSubstr("WorkerOptions::transports")));
  callee.signal(SIGKILL);
}

}  // namespace
}  // namespace farspan::testing
