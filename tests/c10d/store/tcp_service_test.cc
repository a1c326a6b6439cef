// The server's side of the TCP store without sockets. The rules: c10d/store/README.md, "The wire".
#include <farspan/c10d/store/tcp_service.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include <farspan/c10d/store/store.h>

namespace farspan::dist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Verdict = TcpService::Verdict;
using namespace std::chrono_literals;

std::string command(TcpCode code, std::initializer_list<std::string> texts = {}) {
  std::string out;
  put_code(out, code);
  for (const std::string& text : texts) put_text(out, text);
  return out;
}

std::string many(TcpCode code, std::initializer_list<std::string> texts, int64_t count = -1) {
  std::string out;
  put_code(out, code);
  put_i64(out, count >= 0 ? count : static_cast<int64_t>(texts.size()));
  for (const std::string& text : texts) put_text(out, text);
  return out;
}

std::string add(const std::string& key, int64_t delta) {
  std::string out = command(TcpCode::kAdd, {key});
  put_i64(out, delta);
  return out;
}

std::string greeting(uint32_t magic = kTcpMagic) {
  std::string out;
  put_code(out, TcpCode::kValidate);
  put_u32(out, magic);
  return out;
}

std::string ping(uint32_t nonce) {
  std::string out;
  put_code(out, TcpCode::kPing);
  put_u32(out, nonce);
  return out;
}

std::string u8(uint8_t value) { return std::string(1, static_cast<char>(value)); }
std::string u32(uint32_t value) {
  std::string out;
  put_u32(out, value);
  return out;
}
std::string i64(int64_t value) {
  std::string out;
  put_i64(out, value);
  return out;
}
std::string text(std::string_view value) {
  std::string out;
  put_text(out, value);
  return out;
}

const std::string kGo = u8(kTcpStopWaiting);
const TimePoint kStart = TimePoint() + 1h;

class TcpServiceTest : public ::testing::Test {
 protected:
  // A client that has said what it is.
  uint64_t join() {
    const uint64_t id = next_++;
    service_.opened(id, now_);
    EXPECT_EQ(service_.received(id, greeting()), Verdict::kRead);
    return id;
  }
  // What the service says to a client since the last call.
  std::string take(uint64_t id) { return std::exchange(service_.output(id), {}); }
  std::string ask(uint64_t id, const std::string& bytes) {
    EXPECT_EQ(service_.received(id, bytes), Verdict::kRead);
    return take(id);
  }

  TcpServiceLimits limits_;
  TcpService service_;
  TimePoint now_ = kStart;
  uint64_t next_ = 0;
};

// One of each command, with the answers, as PyTorch's server gives them.
std::pair<std::string, std::string> conversation() {
  std::string in, out;
  const auto say = [&](const std::string& request, const std::string& answer) {
    in += request;
    out += answer;
  };
  say(ping(77), u32(77));
  say(command(TcpCode::kSet, {"/k", "v"}), "");
  say(command(TcpCode::kGet, {"/k"}), text("v"));
  say(command(TcpCode::kGet, {"/none"}), text(""));
  say(command(TcpCode::kCompareSet, {"/k", "v", "w"}), text("w"));
  say(command(TcpCode::kCompareSet, {"/k", "v", "x"}), text("w"));
  say(command(TcpCode::kCompareSet, {"/c", "v", "x"}), text("v"));
  say(command(TcpCode::kCompareSet, {"/c", "", "x"}), text("x"));
  say(add("/n", -5), i64(-5));
  say(many(TcpCode::kCheck, {"/k", "/n"}), u8(kTcpAllExist));
  say(many(TcpCode::kCheck, {"/k", "/none"}), u8(kTcpNotAll));
  say(many(TcpCode::kCheck, {}), u8(kTcpAllExist));
  say(many(TcpCode::kWait, {"/k", "/n"}), kGo);
  say(command(TcpCode::kNumKeys), i64(3));
  say(command(TcpCode::kDeleteKey, {"/c"}), i64(1));
  say(command(TcpCode::kDeleteKey, {"/c"}), i64(0));
  say(command(TcpCode::kAppend, {"/k", "y"}), "");
  say(many(TcpCode::kMultiSet, {"/a", "1", "/b", "2"}, 2), "");
  say(many(TcpCode::kMultiGet, {"/b", "/none", "/k", "/a"}),
      text("2") + text("") + text("wy") + text("1"));
  say(command(TcpCode::kCancelWait), u8(kTcpWaitCancelled));
  say(command(TcpCode::kQueuePush, {"/q", "1"}), "");
  say(command(TcpCode::kQueuePush, {"/q", ""}), "");
  say(command(TcpCode::kQueueLen, {"/q"}), i64(2));
  say(command(TcpCode::kQueuePop, {"/q"}), i64(2) + text("1"));
  say(command(TcpCode::kQueuePop, {"/q"}), i64(1) + text(""));
  say(command(TcpCode::kQueuePop, {"/q"}), i64(0));
  say(many(TcpCode::kMultiSet, {}, 0), "");
  say(command(TcpCode::kDeleteKey, {"/a"}), i64(1));
  say(command(TcpCode::kDeleteKey, {"/b"}), i64(1));
  say(command(TcpCode::kDeleteKey, {"/n"}), i64(1));
  say(command(TcpCode::kListKeys), i64(1) + text("/k"));
  return {in, out};
}

TEST_F(TcpServiceTest, AnswersEveryCommandOfTheProtocol) {
  const auto [in, out] = conversation();
  EXPECT_EQ(ask(join(), in), out);
}

TEST_F(TcpServiceTest, CommandsMayComeInPiecesOfAnySize) {
  const auto [in, out] = conversation();
  for (size_t piece = 1; piece < 40; ++piece) {
    TcpService service;
    service.opened(0, now_);
    const std::string all = greeting() + in;
    for (size_t at = 0; at < all.size(); at += piece) {
      ASSERT_EQ(service.received(0, std::string_view(all).substr(at, piece)), Verdict::kRead);
    }
    EXPECT_EQ(service.output(0), out) << "in pieces of " << piece;
  }
}

TEST_F(TcpServiceTest, GreetingOnTheWireIsPyTorchs) {
  EXPECT_EQ(greeting(), std::string("\x00\xce\xf7\x85\x3c", 5));
}

TEST_F(TcpServiceTest, AWaitIsAnsweredOnceAfterItsLastKey) {
  const auto waiter = join(), setter = join();
  EXPECT_EQ(ask(waiter, many(TcpCode::kWait, {"/a", "/b", "/a"})), "");
  ask(setter, command(TcpCode::kSet, {"/a", ""}));
  EXPECT_EQ(take(waiter), "");
  ask(setter, command(TcpCode::kAppend, {"/b", ""}));
  EXPECT_EQ(take(waiter), kGo);
  ask(setter, command(TcpCode::kSet, {"/b", ""}));
  EXPECT_EQ(take(waiter), "");
  EXPECT_EQ(service_.waits(), 0u);
}

TEST_F(TcpServiceTest, AWaitDoesNotBlockLaterCommandsOfItsConnection) {
  const auto client = join();
  EXPECT_EQ(ask(client, many(TcpCode::kWait, {"/a"}) + ping(1)), u32(1));
  EXPECT_EQ(ask(client, command(TcpCode::kSet, {"/a", ""})), kGo);
}

TEST_F(TcpServiceTest, AKeyThatWasDeletedMeanwhileIsWaitedForAgain) {
  const auto waiter = join(), setter = join();
  ask(waiter, many(TcpCode::kWait, {"/a", "/b"}));
  ask(setter, command(TcpCode::kSet, {"/a", ""}));
  ask(setter, command(TcpCode::kDeleteKey, {"/a"}));
  ask(setter, command(TcpCode::kSet, {"/b", ""}));
  EXPECT_EQ(take(waiter), "");
  ask(setter, command(TcpCode::kSet, {"/a", ""}));
  EXPECT_EQ(take(waiter), kGo);
}

TEST_F(TcpServiceTest, ACancelledWaitIsForgotten) {
  const auto waiter = join(), setter = join();
  ask(waiter, many(TcpCode::kWait, {"/a"}) + many(TcpCode::kWait, {"/b"}));
  EXPECT_EQ(ask(waiter, command(TcpCode::kCancelWait)), u8(kTcpWaitCancelled));
  EXPECT_EQ(service_.waits(), 0u);
  ask(setter, command(TcpCode::kSet, {"/a", ""}) + command(TcpCode::kSet, {"/b", ""}));
  EXPECT_EQ(take(waiter), "");
}

TEST_F(TcpServiceTest, EachPushWakesOneWaiterInTheOrderTheyCame) {
  const auto first = join(), second = join(), pusher = join();
  ask(first, many(TcpCode::kWait, {"/q"}));
  ask(second, many(TcpCode::kWait, {"/q"}));
  ask(pusher, command(TcpCode::kQueuePush, {"/q", "1"}));
  EXPECT_EQ(take(first), kGo);
  EXPECT_EQ(take(second), "");
  EXPECT_EQ(ask(first, command(TcpCode::kQueuePop, {"/q"})), i64(1) + text("1"));
  EXPECT_EQ(take(second), "");
  ask(pusher, command(TcpCode::kQueuePush, {"/q", "2"}));
  EXPECT_EQ(take(second), kGo);
}

TEST_F(TcpServiceTest, AValueGoesToTheNextInLineWhenTheOneWokenGoesAwayOrCancels) {
  const auto first = join(), second = join(), third = join(), pusher = join();
  for (const auto waiter : {first, second, third}) ask(waiter, many(TcpCode::kWait, {"/q"}));
  ask(pusher, command(TcpCode::kQueuePush, {"/q", "1"}));
  EXPECT_EQ(take(first), kGo);
  service_.closed(first);
  EXPECT_EQ(take(second), kGo);
  // Its answer crossed the cancellation.
  EXPECT_EQ(ask(second, command(TcpCode::kCancelWait)), u8(kTcpWaitCancelled));
  EXPECT_EQ(take(third), kGo);
  EXPECT_EQ(ask(third, command(TcpCode::kQueuePop, {"/q"})), i64(1) + text("1"));
}

TEST_F(TcpServiceTest, WhoDoesNotBeginWithTheMagicIsIgnoredAndClosedWhenItsTimeIsOver) {
  const uint64_t wrong = 100, silent = 101, half = 102;
  for (const uint64_t id : {wrong, silent, half}) service_.opened(id, now_);
  const auto good = join();
  EXPECT_EQ(service_.received(wrong, "GET / HTTP/1.1\r\n"), Verdict::kIgnore);
  EXPECT_EQ(service_.received(wrong, greeting()), Verdict::kIgnore);
  EXPECT_EQ(service_.received(half, greeting().substr(0, 4)), Verdict::kRead);
  EXPECT_EQ(service_.output(wrong), "");
  EXPECT_THAT(service_.strangers_due(now_ + 4s), IsEmpty());
  EXPECT_EQ(service_.next_due(), Deadline(now_ + limits_.handshake));
  EXPECT_THAT(service_.strangers_due(now_ + 5s), ElementsAre(wrong, silent, half));
  EXPECT_TRUE(service_.next_due().is_never());
  EXPECT_EQ(ask(good, ping(3)), u32(3));
}

TEST_F(TcpServiceTest, OfTooManyStrangersTheOldestAreClosedFirst) {
  TcpServiceLimits limits;
  limits.max_strangers = 2;
  TcpService service(limits);
  for (uint64_t id = 0; id < 5; ++id) service.opened(id, now_);
  EXPECT_EQ(service.received(1, greeting()), Verdict::kRead);
  EXPECT_THAT(service.strangers_due(now_), ElementsAre(0, 2));
}

TEST_F(TcpServiceTest, WhatBreaksTheProtocolClosesTheConnection) {
  std::string long_key;
  put_code(long_key, TcpCode::kGet);
  put_i64(long_key, kMaxTcpKeyBytes + 1);
  std::string negative = command(TcpCode::kSet, {"/k"});
  put_i64(negative, -1);
  std::string long_value = command(TcpCode::kSet, {"/k"});
  put_i64(long_value, kMaxTcpValueBytes + 1);
  std::string negative_count;
  put_code(negative_count, TcpCode::kMultiSet);
  put_i64(negative_count, -1);
  const std::string bad[] = {greeting(),              // twice
                             std::string(1, 18),      // a code of a newer version
                             std::string(1, '\xff'),  //
                             long_key,                //
                             negative,                //
                             long_value,              //
                             many(TcpCode::kWait, {}, kMaxTcpKeys + 1),  //
                             negative_count,                             //
                             command(TcpCode::kSet, {"/t", "abc"}) + add("/t", 1)};
  for (const std::string& bytes : bad) {
    const auto id = join();
    EXPECT_EQ(service_.received(id, bytes), Verdict::kClose) << ::testing::PrintToString(bytes);
    service_.closed(id);
  }
  EXPECT_EQ(service_.clients(), 0u);
}

TEST_F(TcpServiceTest, KeepsNoMoreThanWhatHasComeWhateverALengthSays) {
  const auto client = join();
  std::string huge = many(TcpCode::kMultiSet, {"/k"}, kMaxTcpKeys);
  put_i64(huge, kMaxTcpValueBytes);
  EXPECT_EQ(ask(client, huge + "only this"), "");
  // The command may go on, up to its limit.
  std::string value(kMaxTcpValueBytes, 'v');
  Verdict verdict = service_.received(client, std::string(kMaxTcpValueBytes - 9, 'v'));
  for (int i = 0; verdict == Verdict::kRead && i < 100; ++i) {
    verdict = service_.received(client, text("/k") + text(value));
  }
  EXPECT_EQ(verdict, Verdict::kClose);
}

TEST_F(TcpServiceTest, AReplyThatNobodyHasMemoryForClosesTheConnection) {
  const auto client = join();
  const std::string value(kMaxTcpValueBytes, 'v');
  ask(client, command(TcpCode::kSet, {"/k", value}));
  std::string request = many(TcpCode::kMultiGet, {}, 1000);
  for (int i = 0; i < 1000; ++i) put_text(request, "/k");
  EXPECT_EQ(service_.received(client, request), Verdict::kClose);
}

TEST_F(TcpServiceTest, ASlowReaderIsNotReadFromUntilItHasTakenItsAnswers) {
  const auto client = join();
  const std::string value(limits_.max_output / 2, 'v');
  ask(client, command(TcpCode::kSet, {"/k", value}));
  std::string gets;
  for (int i = 0; i < 7; ++i) gets += command(TcpCode::kGet, {"/k"});
  std::string answers;
  Verdict verdict = service_.received(client, gets);
  for (int rounds = 0; verdict == Verdict::kPause; ++rounds) {
    ASSERT_LT(rounds, 10);
    EXPECT_LE(service_.output(client).size(), 2 * limits_.max_output);
    answers += take(client);
    verdict = service_.resume(client);
  }
  answers += take(client);
  EXPECT_EQ(answers.size(), 7 * text(value).size());
}

TEST_F(TcpServiceTest, PendingWaitsOfOneClientAreBounded) {
  TcpServiceLimits limits;
  limits.max_waited_keys = 10;
  TcpService service(limits);
  service.opened(0, now_);
  EXPECT_EQ(service.received(0, greeting()), Verdict::kRead);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(service.received(0, many(TcpCode::kWait, {"/a"})), Verdict::kRead);
  }
  EXPECT_EQ(service.received(0, many(TcpCode::kWait, {"/a"})), Verdict::kClose);
  service.closed(0);
  EXPECT_EQ(service.waits(), 0u);
}

TEST_F(TcpServiceTest, RandomAndDamagedBytesNeverHarmTheOthers) {
  std::mt19937 random(42);
  const auto good = join();
  const std::string sane = conversation().first;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = sane;
    if (round % 2) {
      for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(random() % bytes.size());
    } else {
      for (char& byte : bytes) byte = static_cast<char>(random() % 24);
    }
    const auto id = join();
    Verdict verdict = service_.received(id, bytes);
    for (int i = 0; verdict == Verdict::kPause && i < 100; ++i) {
      take(id);
      verdict = service_.resume(id);
    }
    service_.closed(id);
    service_.strangers_due(now_);
    ASSERT_EQ(ask(good, ping(static_cast<uint32_t>(round))), u32(static_cast<uint32_t>(round)));
  }
  EXPECT_EQ(service_.waits(), 0u);
  EXPECT_EQ(service_.clients(), 1u);
}

}  // namespace
}  // namespace farspan::dist
