// Stores in a server of their own: what every one of them does, over real servers. The rules:
// c10d/store/redis_store.h, etcd_store.h and rendezvous.h.
#include "conformance/store_suite.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>

#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/generation.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/rendezvous.h>

#include "c10d/store/store_server.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Server = StoreServer::Kind;

std::string scheme_of(Server kind) { return kind == Server::kRedis ? "redis" : "etcd"; }

std::shared_ptr<Store> join(Server kind, const std::string& place, const std::string& prefix,
                            Millis timeout = 60s, dist::LaunchEnvironment environment = {}) {
  dist::RendezvousOptions options;
  options.environment = std::move(environment);
  options.timeout = timeout;
  const std::string url = scheme_of(kind) + "://" + place + "?rank=0&world_size=1&prefix=" + prefix;
  return dist::rendezvous(url, options).store;
}

std::string new_prefix() {
  static int number = 0;
  return "job" + std::to_string(++number);
}

// For all tests that do it no harm: each has a prefix of its own.
StoreServer& common_server(Server kind) {
  static std::map<Server, std::unique_ptr<StoreServer>> servers;
  auto& server = servers[kind];
  if (!server) server = std::make_unique<StoreServer>(kind);
  return *server;
}

OpenStore make(Server kind) {
  if (!StoreServer::missing(kind).empty()) return nullptr;
  return [kind, prefix = new_prefix()] { return join(kind, common_server(kind).place(), prefix); };
}

OpenStore with_prefix(const OpenStore& open) {
  if (!open) return nullptr;
  open()->set("stranger", "");
  return [open] { return std::make_shared<dist::PrefixStore>("a/b", open()); };
}

constexpr const char* kNeeds = "the server is not installed, or its store was not built";
INSTANTIATE_TEST_SUITE_P(
    Servers, StoreSuite,
    ::testing::Values(StoreKind{"Redis", [] { return make(Server::kRedis); }, kNeeds},
                      StoreKind{"Etcd", [] { return make(Server::kEtcd); }, kNeeds},
                      StoreKind{"PrefixOverRedis", [] { return with_prefix(make(Server::kRedis)); },
                                kNeeds}),
    name_of_kind);

class ServerStore : public ::testing::TestWithParam<Server> {
 protected:
  void SetUp() override {
    const std::string why = StoreServer::missing(GetParam());
    if (!why.empty()) GTEST_SKIP() << why;
  }
  std::shared_ptr<Store> open(const std::string& prefix, Millis timeout = 60s) {
    return join(GetParam(), common_server(GetParam()).place(), prefix, timeout);
  }
  std::shared_ptr<Store> open_at(const StoreServer& server, const std::string& user = "",
                                 Millis timeout = 60s, dist::LaunchEnvironment environment = {}) {
    return join(GetParam(), user + server.place(), "job", timeout, std::move(environment));
  }
};
INSTANTIATE_TEST_SUITE_P(Servers, ServerStore, ::testing::Values(Server::kRedis, Server::kEtcd),
                         [](const auto& kind) { return scheme_of(kind.param); });

constexpr const char* kPassword = PasswordServer::kPassword;
constexpr const char* kAlice = "alice:s3cret%2F?%40@";  // '?' may stand for itself

TEST_P(ServerStore, UserAndPasswordAreTakenFromTheUrlTheEnvironmentOrAFile) {
  PasswordServer with(GetParam());
  const auto by_url = open_at(with.server, kAlice);
  by_url->set("k", "v");
  EXPECT_THAT(by_url->address(), Not(HasSubstr("s3cret")));

  dist::LaunchEnvironment environment;
  environment.store_password = kPassword;
  EXPECT_EQ(open_at(with.server, "alice@", 60s, environment)->get("k"), "v");

  const TemporaryFolder folder;
  std::ofstream(folder.file("password")) << kPassword << "\n";
  environment = {};
  environment.store_password_file = folder.file("password");
  const auto by_file = open_at(with.server, "alice@", 60s, environment);
  // Expect: a waiter, too, is let in.
  auto waiting = std::async(std::launch::async, [&] { return by_file->get("late"); });
  by_url->set("late", "here");
  EXPECT_EQ(waiting.get(), "here");
  by_file->queue_push("q", "1");
  EXPECT_EQ(by_url->clone()->queue_pop("q"), "1");

  environment.store_password_file = folder.file("none");
  const Error error = error_of([&] { open_at(with.server, "alice@", 60s, environment); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr(folder.file("none")));
}

TEST_P(ServerStore, AWrongPasswordIsAnErrorAtOnceThatDoesNotShowIt) {
  PasswordServer with(GetParam());
  open_at(with.server, kAlice);  // it is there
  const TimePoint begun = Clock::now();
  for (const std::string user : {"alice:wr0ng@", "nobody:wr0ng@", "alice:wr0ng?&@", ""}) {
    const Error error = error_of([&] { open_at(with.server, user); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_FALSE(error.advice().empty());
    EXPECT_THAT(error.what(), HasSubstr(with.server.place()));
    EXPECT_THAT(error.what(), Not(HasSubstr("wr0ng")));
  }
  EXPECT_LT(Clock::now() - begun, 20s);
}

TEST_P(ServerStore, ThePasswordIsGivenAgainWhereTheServerHasForgottenTheLogin) {
  PasswordServer with(GetParam());
  const auto store = open_at(with.server, kAlice);
  store->set("k", "v");
  with.server.kill();
  with.server.start();
  EXPECT_TRUE(eventually([&] { return code_of([&] { store->check({"k"}); }) == Code::kOk; }, 60s));
  EXPECT_EQ(store->get("k"), "v");
  if (GetParam() == Server::kRedis) return;
  // Tokens of etcd outlive its restart, but not a change of the password, to the same here.
  const uint16_t port = with.server.port();
  const std::string login =
      http_post(port, "/v3/auth/authenticate", R"({"name":"root","password":"root"})");
  const size_t begin = login.find(R"("token":")") + 9;
  const std::string token = login.substr(begin, login.find('"', begin) - begin);
  const std::string change = R"({"name":"alice","password":")" + std::string(kPassword) + R"("})";
  EXPECT_THAT(http_post(port, "/v3/auth/user/changepw", change, token), HasSubstr("200 OK"));
  EXPECT_EQ(store->add("n", 1), 1);
  EXPECT_EQ(store->add("n", 1), 2);
}

TEST_P(ServerStore, APasswordThatTheServerDoesNotWantIsAnError) {
  const std::string place = common_server(GetParam()).place();
  const Error error = error_of([&] { join(GetParam(), "alice:wr0ng@" + place, "job"); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_FALSE(error.advice().empty());
  EXPECT_THAT(error.what(), Not(HasSubstr("wr0ng")));
}

TEST_P(ServerStore, JobsWithDifferentPrefixesDoNotMeet) {
  const std::string prefix = new_prefix();
  const auto one = open(prefix), inside = open(prefix + "/k"), beside = open(prefix + ".");
  for (const auto& store : {one, inside, beside}) {
    store->set("k", store->address());
    store->queue_push("q", store->address());
  }
  for (const auto& store : {one, inside, beside}) {
    EXPECT_EQ(store->get("k"), store->address());
    EXPECT_THAT(store->list_keys(), ::testing::ElementsAre("k"));
    EXPECT_EQ(store->num_keys(), 1);
    EXPECT_EQ(store->queue_len("q"), 1);
    EXPECT_EQ(store->queue_pop("q"), store->address());
  }
  one->set("only here", "");
  EXPECT_FALSE(inside->check({"only here"}));
  EXPECT_EQ(error_of([&] { open("a:b"); }).code(), Code::kInvalidArgument);
}

TEST_P(ServerStore, QueuesWithSimilarNamesAreApart) {
  const auto store = open(new_prefix());
  store->queue_push("q", "1");
  store->queue_push("q:", "2");
  store->queue_push("q:0", "3");
  store->queue_push("", "4");
  EXPECT_EQ(store->queue_len("q"), 1);
  EXPECT_EQ(store->queue_pop(""), "4");
  EXPECT_EQ(store->queue_pop("q:"), "2");
  EXPECT_EQ(store->queue_pop("q"), "1");
  EXPECT_EQ(store->queue_pop("q:0"), "3");
}

TEST_P(ServerStore, WhatManyPushKeepsTheOrderOfEach) {
  constexpr int kPushers = 4, kValues = 15;
  const std::string prefix = new_prefix();
  std::vector<std::thread> pushers;
  for (int i = 0; i < kPushers; ++i) {
    pushers.emplace_back([&, i, store = open(prefix)] {
      for (int j = 0; j < kValues; ++j) {
        store->queue_push("q", std::to_string(i) + " " + std::to_string(j));
      }
    });
  }
  const auto store = open(prefix);
  std::vector<int> next(kPushers, 0);
  for (int i = 0; i < kPushers * kValues; ++i) {
    const std::string value = store->queue_pop("q");
    const size_t space = value.find(' ');
    EXPECT_EQ(std::stoi(value.substr(space + 1)), next[std::stoul(value.substr(0, space))]++);
  }
  for (auto& pusher : pushers) pusher.join();
  EXPECT_EQ(store->queue_len("q"), 0);
}

TEST_P(ServerStore, AddsToANumberWithZerosInFrontAreNotLost) {
  constexpr int kThreads = 4;
  const std::string prefix = new_prefix();
  std::vector<std::shared_ptr<Store>> stores;
  for (int i = 0; i < kThreads; ++i) stores.push_back(open(prefix));
  for (int round = 0; round < 10; ++round) {
    stores[0]->set("n", "007");
    std::vector<std::thread> threads;
    std::vector<int64_t> sums(kThreads);
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { sums[i] = stores[i]->add("n", 1); });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_THAT(sums, ::testing::UnorderedElementsAre(8, 9, 10, 11));
    EXPECT_EQ(stores[0]->get("n"), "11");
  }
}

TEST_P(ServerStore, AWaiterIsToldAndDoesNotFindOutByItself) {
  // By itself it looks every two seconds.
  constexpr int kRounds = 6;
  const std::string prefix = new_prefix();
  const auto store = open(prefix), other = open(prefix);
  std::vector<Clock::duration> took;
  for (int i = 0; i < kRounds; ++i) {
    const std::string key = std::to_string(i);
    auto waiting = std::async(std::launch::async, [&, i] {
      if (i % 3 == 0) other->get(key, 20s);
      if (i % 3 == 1) other->wait({key, "other" + key}, 20s);
      if (i % 3 == 2) other->queue_pop(key, 20s);
      return Clock::now();
    });
    EXPECT_EQ(waiting.wait_for(30ms), std::future_status::timeout);  // it waits
    const TimePoint begun = Clock::now();
    if (i % 3 == 2) {
      store->queue_push(key, "");
    } else {
      store->multi_set({key, "other" + key}, {"", ""});
    }
    took.push_back(waiting.get() - begun);
  }
  std::sort(took.begin(), took.end());
  RecordProperty("median_us",
                 static_cast<int>(std::chrono::duration_cast<Micros>(took[kRounds / 2]).count()));
  EXPECT_LT(took[kRounds / 2], 500ms);
}

TEST_P(ServerStore, ManyClientsMeet) {
  const int kClients = GetParam() == Server::kRedis ? 64 : 16;
  const std::string prefix = new_prefix();
  std::vector<std::string> keys;
  for (int i = 0; i < kClients; ++i) keys.push_back("worker" + std::to_string(i));
  std::vector<std::future<int64_t>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::async(std::launch::async, [&, i] {
      const auto store = open(prefix);
      store->add("come", 1);
      store->set(keys[static_cast<size_t>(i)], std::to_string(i));
      store->wait(keys);
      EXPECT_EQ(store->multi_get(keys)[7], "7");
      return store->add("gone", 1);
    }));
  }
  std::vector<int64_t> order;
  for (auto& client : clients) order.push_back(client.get());
  std::sort(order.begin(), order.end());
  for (int i = 0; i < kClients; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i + 1);
  EXPECT_EQ(open(prefix)->get("come"), std::to_string(kClients));
}

TEST_P(ServerStore, KeepsTryingUntilTheServerComes) {
  const ReservedPort reserved;
  const std::string place = "127.0.0.1:" + std::to_string(reserved.number());
  const Error error = error_of([&] { join(GetParam(), place, "job", 100ms); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_GE(error.elapsed(), 100ms);
  EXPECT_THAT(error.what(), HasSubstr(place));
  EXPECT_THAT(error.what(), ::testing::ContainsRegex("[Cc]onnect"));
  EXPECT_THAT(error.advice(), HasSubstr("start"));

  StoreServer server(GetParam());
  server.kill();
  auto joining = std::async(std::launch::async, [&] { return open_at(server); });
  EXPECT_EQ(joining.wait_for(50ms), std::future_status::timeout);
  server.start();
  joining.get()->set("k", "v");
}

TEST_P(ServerStore, SomethingElseAtThePortIsAnErrorAtOnce) {
  const auto listening = net::listen_on({"127.0.0.1", 0}, Deadline::after(5s));
  const auto port = net::SocketAddress::local_of(listening[0].get()).port();
  std::thread other([&] {
    pollfd poller{listening[0].get(), POLLIN, 0};
    poll(&poller, 1, 20'000);
    const net::OwnedDescriptor fd(accept4(listening[0].get(), nullptr, nullptr, SOCK_NONBLOCK));
    char part[4096];
    net::receive_some(fd.get(), part, sizeof part, Deadline::after(20s));
    const std::string answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    net::send_all(fd.get(), answer.data(), answer.size(), Deadline::after(20s));
  });
  const Error error =
      error_of([&] { join(GetParam(), "127.0.0.1:" + std::to_string(port), "job"); });
  EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
  EXPECT_THAT(error.advice(), HasSubstr("something else"));
  other.join();
}

TEST_P(ServerStore, AServerThatDiesFailsAllWhoWaitAtOnceAndIsReachedWhenItIsBack) {
  StoreServer server(GetParam());
  const auto store = open_at(server);
  store->set("k", "before");
  store->queue_push("q", "kept");
  std::vector<std::future<Error>> waiting;
  const std::function<void()> calls[] = {[&] { store->get("never"); },
                                         [&] {
                                           store->wait({"k", "never"});
                                         },
                                         [&] { store->multi_get({"never"}); },
                                         [&] { store->queue_pop("none"); }};
  for (const auto& call : calls) {
    waiting.push_back(std::async(std::launch::async, [&] { return error_of(call); }));
  }
  std::this_thread::sleep_for(200ms);
  const TimePoint begun = Clock::now();
  server.kill();
  for (auto& one : waiting) {
    const Error error = one.get();
    // A waiter that was just about to ask again finds nobody.
    EXPECT_THAT(error.code(), ::testing::AnyOf(Code::kDisconnected, Code::kUnavailable))
        << error.what();
    EXPECT_THAT(error.what(), HasSubstr(server.place()));
    EXPECT_FALSE(error.advice().empty());
  }
  EXPECT_LT(Clock::now() - begun, 10s);
  const Error error = error_of([&] { store->set("k", "nobody there"); });
  EXPECT_THAT(error.code(), ::testing::AnyOf(Code::kUnavailable, Code::kDisconnected));
  EXPECT_THAT(error.what(), HasSubstr(server.place()));

  server.start();
  EXPECT_TRUE(eventually([&] { return code_of([&] { store->check({"k"}); }) == Code::kOk; }, 60s));
  EXPECT_EQ(store->get("k"), "before");
  EXPECT_EQ(store->queue_pop("q"), "kept");
  EXPECT_EQ(store->add("n", 1), 1);
}

TEST_P(ServerStore, AServerThatIsStuckIsATimeoutForEveryOperation) {
  StoreServer server(GetParam());
  const auto store = open_at(server);
  store->set("k", "v");
  server.signal(SIGSTOP);
  store->set_timeout(100ms);
  const std::function<void()> calls[] = {
      [&] { store->set("l", "v"); },        [&] { store->get("k"); },
      [&] { store->add("n", 1); },          [&] { store->wait({"l"}); },
      [&] { store->list_keys(); },          [&] { store->compare_set("c", "", "w"); },
      [&] { store->queue_push("q", "v"); }, [&] { store->multi_get({"k", "l"}); }};
  for (const auto& call : calls) {
    const Error error = error_of(call);
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_GE(error.elapsed(), 100ms);
    EXPECT_LT(error.elapsed(), 20s);
    EXPECT_THAT(error.advice(), HasSubstr("stuck"));
  }
  server.signal(SIGCONT);
  store->set_timeout(60s);
  EXPECT_EQ(store->get("k", 60s), "v");
}

TEST_P(ServerStore, AStartThatMeetsTheKeysOfAnEarlierOneHasANameOfItsOwn) {
  const std::string prefix = new_prefix();
  std::vector<std::string> names;
  for (int start = 0; start < 2; ++start) {
    auto one = std::async(std::launch::async, [&] {
      return dist::agree_on_generation(*open(prefix), 1, 2, Deadline::after(30s));
    });
    names.push_back(dist::agree_on_generation(*open(prefix), 0, 2, Deadline::after(30s)));
    EXPECT_EQ(one.get(), names.back());
  }
  EXPECT_NE(names[0], names[1]);
}

// Or a test's result would depend on who runs it.
TEST(Process, DoesNotInheritThePasswordOfAStore) {
  const char* names[] = {"FARSPAN_STORE_PASSWORD", "FARSPAN_STORE_PASSWORD_FILE"};
  for (const char* name : names) setenv(name, "s3cret", 1);
  Process process("environment");
  for (const char* name : names) unsetenv(name);
  const Process::End end = process.wait(20s);
  EXPECT_EQ(end.status, 0);
  EXPECT_THAT(end.output, Not(HasSubstr("s3cret")));
}

int print_environment() {
  const auto found = dist::LaunchEnvironment::read();
  std::printf("%s %s\n", found.store_password.value_or("none").c_str(),
              found.store_password_file.value_or("none").c_str());
  return 0;
}

std::map<std::string, Role> roles() {
  auto all = StoreServer::roles();
  all["environment"] = print_environment;
  return all;
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::roles());
}
