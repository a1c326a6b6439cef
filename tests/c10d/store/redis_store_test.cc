// What only a store in Redis does. The rules: c10d/store/redis_store.h.
#include <farspan/c10d/store/redis_store.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include <farspan/c10d/store/redis_connection.h>
#include <farspan/c10d/store/server_connections.h>

#include "c10d/store/store_server.h"
#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using ::testing::HasSubstr;
using testing::StoreServer;

class RedisStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = StoreServer::missing(StoreServer::Kind::kRedis);
    if (!why.empty()) GTEST_SKIP() << why;
    server_ = std::make_unique<StoreServer>(StoreServer::Kind::kRedis);
    options_.port = server_->port();
    options_.timeout = 60s;
    store_ = std::make_unique<RedisStore>(options_);
  }
  // As somebody else would, beside the store.
  RedisReply ask(const RedisCommand& command) {
    RedisConnection connection({"127.0.0.1", server_->port()}, {}, Deadline::after(20s));
    return connection.ask(command, Deadline::after(20s));
  }

  std::unique_ptr<StoreServer> server_;
  RedisStoreOptions options_;
  std::unique_ptr<RedisStore> store_;
};

TEST_F(RedisStoreTest, ClearDeletesAllOfTheJobAndNothingElse) {
  options_.prefix = "default/other";
  RedisStore other(options_);
  other.set("k", "kept");
  other.queue_push("q", "kept");
  store_->set("k", "v");
  for (const char* queue : {"q", "r"}) store_->queue_push(queue, "v");
  EXPECT_EQ(store_->queue_pop("r"), "v");
  store_->clear();
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_EQ(store_->queue_len("q"), 0);
  EXPECT_EQ(ask({"KEYS", "farspan:default:*"}).elements.size(), 0u);
  EXPECT_EQ(other.get("k"), "kept");
  EXPECT_EQ(other.queue_pop("q"), "kept");
}

TEST_F(RedisStoreTest, DatabasesAreApart) {
  store_->set("k", "0");
  options_.db = 1;
  RedisStore one(options_);
  EXPECT_FALSE(one.check({"k"}));
  EXPECT_THAT(one.address(), HasSubstr("/1?prefix=default"));
  options_.db = 999;
  const Error error = error_of([&] { RedisStore none(options_); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.advice(), HasSubstr("database"));
}

TEST_F(RedisStoreTest, AWaiterThatIsNotToldFindsOutByItself) {
  RedisStore store(options_, {.look = 50ms});
  auto waiting = std::async(std::launch::async, [&] { return store.get("quiet", 30s); });
  EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
  const TimePoint begun = Clock::now();
  ask({"HSET", "farspan:default:keys", "quiet", "here"});
  EXPECT_EQ(waiting.get(), "here");
  EXPECT_LT(Clock::now() - begun, 15s);
}

TEST_F(RedisStoreTest, AWaitForKeysThatComeOneByOneDoesNotSendAllForEach) {
  constexpr size_t kKeys = 300;
  std::vector<std::string> keys;
  for (size_t i = 0; i < kKeys; ++i) keys.push_back(std::string(500, 'k') + std::to_string(i));
  const auto received = [&] {
    const std::string info = ask({"INFO", "stats"}).text, name = "total_net_input_bytes:";
    return std::stoll(info.substr(info.find(name) + name.size()));
  };
  const auto before = received();
  auto waiting = std::async(std::launch::async, [&] { store_->wait(keys, 60s); });
  RedisConnection other({"127.0.0.1", server_->port()}, {}, Deadline::after(60s));
  for (const std::string& key : keys) {
    const std::string channel = "farspan:default:new:" + key;
    EXPECT_TRUE(testing::eventually([&] {
      const auto known = other.ask({"PUBSUB", "NUMSUB", channel}, Deadline::after(20s)).elements;
      return known[1].integer == 1;
    }));
    store_->set(key, "");
  }
  waiting.get();
  // Expect: less than a third of what it takes to send all that are left for each.
  EXPECT_LT(received() - before, static_cast<int64_t>(kKeys * kKeys / 2 * 500 / 3));
}

TEST_F(RedisStoreTest, AddsToNumbersHoweverTheyAreWritten) {
  store_->set("n", "007");
  EXPECT_EQ(store_->add("n", 1), 8);
  store_->set("n", "9007199254740993");  // more than a double holds
  EXPECT_EQ(store_->add("n", 2), 9007199254740995);
}

TEST_F(RedisStoreTest, AConnectionThatTheServerClosedMeanwhileIsNotUsedAgain) {
  store_->set("k", "v");
  ask({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(store_->get("k"), "v");
}

TEST_F(RedisStoreTest, WhatTheServerRefusesIsSaidWithAdvice) {
  ask({"ACL", "SETUSER", "reader", "on", ">pw", "~farspan:*", "+hget"});
  options_.user = "reader";
  options_.password = "pw";
  const Error denied = error_of([&] { RedisStore store(options_); });
  EXPECT_EQ(denied.code(), Code::kInvalidArgument);
  EXPECT_THAT(denied.advice(), HasSubstr("ACL"));

  ask({"SET", "farspan:default:keys", "somebody else's"});
  const Error taken = error_of([&] { store_->set("k", "v"); });
  EXPECT_EQ(taken.code(), Code::kInvalidArgument);
  EXPECT_THAT(taken.advice(), HasSubstr("prefix"));

  ask({"DEL", "farspan:default:keys"});
  ask({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_EQ(error_of([&] { store_->set("k", "v"); }).code(), Code::kOverloaded);
  EXPECT_EQ(error_of([&] { store_->add("n", 1); }).code(), Code::kOverloaded);
}

TEST(RedisStore, APasswordForAServerThatHasRenamedItsLoginIsNotShown) {
  using testing::StoreServer;
  const std::string why = StoreServer::missing(StoreServer::Kind::kRedis);
  if (!why.empty()) GTEST_SKIP() << why;
  const StoreServer server(StoreServer::Kind::kRedis, {"--rename-command", "AUTH", "LOGIN"});
  RedisStoreOptions options;
  options.port = server.port();
  options.password = "s3cret";
  const Error error = error_of([&] { RedisStore store(options); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("s3cret")));
  EXPECT_THAT(error.message(), HasSubstr("unknown command"));
}

}  // namespace
}  // namespace farspan::dist

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::StoreServer::roles());
}
