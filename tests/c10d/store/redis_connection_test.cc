// What clients of Redis make of what is said to them, by something else or too late; and of a place
// where nobody answers. The rules: c10d/store/redis_connection.h and redis_store.h.
#include <farspan/c10d/store/redis_connection.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <clocale>
#include <functional>
#include <mutex>
#include <thread>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/redis_store.h>
#include <farspan/c10d/store/server_connections.h>

#include "c10d/store/fake_server.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::answering;
using testing::error_of;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Not;

// A store whose server says this to all but the first question, of the constructor.
class SaysThis {
 public:
  explicit SaysThis(std::string answer, Millis after = 0ms, ServerTimes times = {})
      : server_(answering([=, this](const std::string& question) -> std::string {
          if (count_++ == 0) return ":0\r\n";
          {
            const std::lock_guard lock(mutex_);
            asked_ = question;
          }
          std::this_thread::sleep_for(after);
          return answer;
        })),
        store_(options(), times) {}
  RedisStore& store() { return store_; }
  std::string asked() {  // last
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  RedisStoreOptions options() const {
    RedisStoreOptions options;
    options.port = server_.port();
    return options;
  }
  std::atomic<int> count_{0};
  std::mutex mutex_;
  std::string asked_;
  FakeServer server_;
  RedisStore store_;
};

TEST(RedisStore, WhatIsNoAnswerToTheQuestionIsAnError) {
  const std::pair<const char*, std::function<void(RedisStore&)>> all[] = {
      {":-1\r\n", [](auto& store) { store.num_keys(); }},
      {"+OK\r\n", [](auto& store) { store.num_keys(); }},
      {"$-1\r\n", [](auto& store) { store.queue_len("q"); }},
      {":7\r\n",
       [](auto& store) {
         store.check({"a", "b"});
       }},
      {":2\r\n", [](auto& store) { store.delete_key("k"); }},
      {":1\r\n", [](auto& store) { store.get("k"); }},
      {"+2x\r\n", [](auto& store) { store.add("n", 1); }},
      {"$1\r\nk\r\n", [](auto& store) { store.list_keys(); }},
      {"*1\r\n:1\r\n", [](auto& store) { store.list_keys(); }},
      {"*1\r\n$1\r\nv\r\n",
       [](auto& store) {
         store.multi_get({"a", "b"});
       }},
      {"*1\r\n$1\r\nq\r\n", [](auto& store) { store.queue_pop("q"); }},
      {"HTTP/1.1 400 Bad Request\r\n", [](auto& store) { store.set("k", "v"); }}};
  for (const auto& [answer, call] : all) {
    SaysThis says(answer);
    const Error error = error_of([&, &call = call] { call(says.store()); });
    EXPECT_EQ(error.code(), Code::kCorrupt) << answer << error.what();
    EXPECT_THAT(error.advice(), HasSubstr("something else")) << answer;
  }
}

TEST(RedisConnection, AnAnswerThatNeverEndsMeetsTheLimitOrTheDeadline) {
  FakeServer server([](int fd) {
    FakeServer::send(fd, "$4000000000\r\n");
    const std::string much(size_t{4} << 20, 'x');  // the client finds something at each look
    while (true) FakeServer::send(fd, much);
  });
  const net::HostPort where{"127.0.0.1", server.port()};
  RedisConnection limited(where, {}, FakeServer::deadline(), 1'000'000);
  const Error longer = error_of([&] { limited.ask({"GET"}, FakeServer::deadline()); });
  EXPECT_EQ(longer.code(), Code::kInvalidArgument) << longer.what();
  RedisConnection connection(where, {}, FakeServer::deadline());
  const Error late = error_of([&] { connection.ask({"GET"}, Deadline::after(10ms)); });
  EXPECT_EQ(late.code(), Code::kTimeout) << late.what();
}

TEST(RedisConnection, NothingIsAskedAfterTheDeadline) {
  std::atomic<int> questions{0};
  FakeServer server(answering([&](auto&) {
    ++questions;
    return "+OK\r\n";
  }));
  RedisConnection connection({"127.0.0.1", server.port()}, {}, FakeServer::deadline());
  EXPECT_EQ(error_of([&] { connection.ask({"A"}, Deadline::after(0s)); }).code(), Code::kTimeout);
  connection.ask({"B"}, FakeServer::deadline());
  EXPECT_EQ(questions, 1);
}

TEST(RedisConnection, AnErrorThatQuotesThePasswordIsNotShown) {
  for (const char* answer : {"-ERR unknown command 'AUTH', with args beginning with: 's3cret'\r\n",
                             "-WRONGPASS not s3cret\r\n", "-s3cret\r\n"}) {
    FakeServer server(answering([&](auto&) { return answer; }));
    const Error error = error_of([&] {
      RedisConnection({"127.0.0.1", server.port()}, {"", "s3cret", 0}, FakeServer::deadline());
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), Not(HasSubstr("s3c")));
    EXPECT_FALSE(error.advice().empty());
  }
}

TEST(RedisStore, AValueThatIsUnderWayAtTheDeadlineIsNotLost) {
  SaysThis one("$1\r\nv\r\n", 200ms);
  one.store().set_timeout(100ms);
  EXPECT_EQ(one.store().queue_try_pop("q"), "v");
  SaysThis other("*2\r\n$1\r\nq\r\n$1\r\nv\r\n", 200ms);
  EXPECT_EQ(other.store().queue_pop("q", 100ms), "v");
}

TEST(RedisStore, APopThatMayHaveTakenAValueSaysSo) {
  SaysThis says("", 500ms, {.pop_grace = 100ms});
  says.store().set_timeout(50ms);
  for (const auto& pop : {std::function<void()>([&] { says.store().queue_try_pop("q"); }),
                          std::function<void()>([&] { says.store().queue_pop("q"); })}) {
    const Error error = error_of(pop);
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_THAT(error.message(), HasSubstr("is lost"));
    EXPECT_THAT(error.advice(), HasSubstr("stuck"));
  }
}

// It would lose its place in the queue where it asked again.
TEST(RedisStore, APopAsksOnceForAllOfItsTime) {
  // Where the decimal point is a comma, if that is installed, it is a point for Redis.
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8"}) setlocale(LC_ALL, name);
  SaysThis says("*2\r\n$1\r\nq\r\n$1\r\nv\r\n");
  says.store().queue_pop("q", 100'000ms);
  EXPECT_THAT(says.asked(), ::testing::AnyOf(HasSubstr("\n100.000\r"), HasSubstr("\n99.")));
  says.store().queue_pop("q", kNoTimeout);
  EXPECT_THAT(says.asked(), HasSubstr("\n0.000\r"));
  setlocale(LC_ALL, "C");
}

TEST(KeepTrying, WhoOnlyClosesConnectionsIsSomethingElse) {
  FakeServer server([](int fd) { FakeServer::receive(fd); });
  const auto attempt = [&](Deadline deadline) {
    RedisConnection({"127.0.0.1", server.port()}, {}, deadline).ask({"PING"}, deadline);
  };
  const TimePoint begun = Clock::now();
  const Error error = error_of([&] {
    keep_trying(FakeServer::deadline(), {"here", "", 50ms}, attempt);
  });
  EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
  EXPECT_THAT(error.advice(), HasSubstr("something else"));
  EXPECT_GE(Clock::now() - begun, 50ms);
}

TEST(KeepTrying, AServerThatSaysWhyItDisconnectsIsWaitedFor) {
  const TimePoint begun = Clock::now();
  keep_trying(FakeServer::deadline(), {"here", "", 1ms}, [&](Deadline) {
    if (Clock::now() - begun < 100ms) throw Error(Code::kDisconnected, "etcd says: a moment");
  });
}

TEST(KeepTrying, TellsWhyItWaitsAndEndsWithWhatSaysMost) {
  std::string told;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) { told = text; });
  int attempts = 0;
  const Error error = error_of([&] {
    keep_trying(Deadline::after(300ms), {"tcp://psx:1", "check it", {}, 20ms}, [&](Deadline by) {
      if (++attempts == 1) throw Error(Code::kUnavailable, "there is no host 'psx'");
      std::this_thread::sleep_for(std::min<Clock::duration>(by.remaining(), 50ms));
      throw Error(Code::kTimeout, "no answer yet");
    });
  });
  set_log_sink(nullptr);
  EXPECT_GT(attempts, 1);
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_THAT(error.message(), HasSubstr("there is no host 'psx'"));
  EXPECT_EQ(error.advice(), "check it");
  EXPECT_THAT(told, HasSubstr("no store at tcp://psx:1: there is no host 'psx'"));
}

}  // namespace
}  // namespace farspan::dist
