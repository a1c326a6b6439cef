// The rules under test: c10d/backends/README.md, "Messages". What every backend does is in
// tests/conformance/message_cases.cc; here is what can go wrong between posts, and runs under
// ThreadSanitizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <random>
#include <sstream>

#include <farspan/c10d/backends/cpu/post/letter.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/transport/shm/shm_transport.h>

#include "c10d/backends/cpu_job.h"
#include "c10d/transport/one_transport.h"
#include "support/forbid_reading.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::block_of;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::make_job;
using testing::message;
using Bytes = std::vector<std::byte>;

struct Way {
  std::string name;
  testing::HostOf host_of;
  std::string attach;  // from so many bytes on receivers read the memory of senders
};

class Posts : public ::testing::TestWithParam<Way> {
 protected:
  // Between hosts messages of 100,000 bytes go over several lines already.
  void SetUp() override {
    setenv("FARSPAN_CPU_STRIPE_BYTES", "100000", 1);
    setenv("FARSPAN_CPU_ATTACH_BYTES", GetParam().attach.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("FARSPAN_CPU_STRIPE_BYTES");
    unsetenv("FARSPAN_CPU_ATTACH_BYTES");
  }
  static const testing::HostOf& host_of() { return GetParam().host_of; }
};
INSTANTIATE_TEST_SUITE_P(Each, Posts,
                         ::testing::Values(Way{"Attached", testing::one_host, "0"},
                                           Way{"OneHost", testing::one_host, "1000000000000"},
                                           Way{"OwnHosts", testing::own_host, "0"}),
                         [](const auto& one) { return one.param.name; });

Bytes bytes_of(size_t size, unsigned seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + i * 7 + (i >> 8));
  return bytes;
}

Error error_of(const Future<int>& future) {
  EXPECT_TRUE(future.wait_for(30s));
  return future.has_error() ? future.error() : Error(Code::kOk, "it succeeded");
}

TEST_P(Posts, EveryByteArrivesInEveryOrder) {
  constexpr int kRanks = 3, kMessages = 60;
  const auto job = make_job(kRanks, host_of());
  const auto size_of_message = [](int from, int to, int i) {
    std::mt19937 random(static_cast<unsigned>(from * 7919 + to * 31 + i));
    return size_t{1} << (random() % 22);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < kRanks; ++peer) {
      Backend& backend = *job[static_cast<size_t>(rank)];
      threads.emplace_back([&backend, rank, peer, &size_of_message] {
        for (int i = 0; i < kMessages; ++i) {
          Bytes bytes = bytes_of(size_of_message(rank, peer, i), static_cast<unsigned>(i));
          backend.send(message(peer, rank), block_of(bytes)).wait();
        }
      });
      threads.emplace_back([&backend, rank, peer, &size_of_message] {
        for (int i = 0; i < kMessages; ++i) {
          Bytes got(size_of_message(peer, rank, i));
          const int from = i % 3 == 0 ? -1 : peer;  // the tag says who, too
          EXPECT_EQ(backend.recv(message(from, peer), block_of(got)).wait(), peer);
          ASSERT_EQ(got, bytes_of(got.size(), static_cast<unsigned>(i))) << peer << " " << i;
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// Who sends gives up at any moment, and changes the bytes at once: what arrives is whole, or is
// said not to have come.
TEST_P(Posts, WhatASenderGivesUpIsNeverReceivedHalf) {
  constexpr int kRounds = 64;
  constexpr size_t kSize = 3 << 20;
  const Bytes whole(kSize, std::byte{0x5a}), changed(kSize);
  const auto job = make_job(2, host_of());
  std::atomic<int> arrived{0}, given_up{0};
  std::thread sender([&] {
    std::mt19937 random(5);
    Bytes bytes(kSize);
    for (int round = 0; round < kRounds; ++round) {
      bytes = whole;
      const auto sent = job[0]->send(message(1, 4 * round + 0), block_of(bytes));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
      job[0]->send(message(1, 4 * round + 1), {bytes.data(), 1}).wait();
      Bytes late_bytes = whole;
      const Millis in_time(round % 8 == 7 ? 20'000 : 1 << round % 8);
      const auto late = job[0]->send(message(1, 4 * round + 2, in_time), block_of(late_bytes));
      if (error_of(late).code() == Code::kTimeout) ++given_up;
      late_bytes = changed;
      sent.wait();
      job[0]->send(message(1, 4 * round + 3), {bytes.data(), 1}).wait();
    }
  });
  Bytes bytes(kSize), one(1);
  for (int round = 0; round < kRounds; ++round) {
    Bytes late_bytes(kSize);
    Future<int> late;
    const auto receive_late = [&] {
      late = job[1]->recv(message(-1, 4 * round + 2), block_of(late_bytes));
    };
    const bool too_late = round % 8 == 0;  // then nobody asks for it in time
    if (!too_late) receive_late();
    job[1]->recv(message(0, 4 * round + 0), block_of(bytes)).wait();
    ASSERT_EQ(std::memcmp(bytes.data(), whole.data(), kSize), 0);
    job[1]->recv(message(0, 4 * round + 1), block_of(one)).wait();
    job[1]->recv(message(0, 4 * round + 3), block_of(one)).wait();
    if (too_late) receive_late();
    // It may have been withdrawn before it was matched: then the receive is still there.
    if (late.wait_for(1ms) && !late.has_error()) {
      ++arrived;
      ASSERT_EQ(std::memcmp(late_bytes.data(), whole.data(), kSize), 0);
    } else if (!late.ready()) {
      job[1]->send(message(1, 4 * round + 2), block_of(late_bytes));  // to itself: ends it
      late.wait_for(30s);
    }
  }
  sender.join();
  EXPECT_GT(given_up, 0);
  EXPECT_GT(arrived, 0);
}

TEST_P(Posts, NothingIsWrittenAfterAReceiveHasEnded) {
  constexpr size_t kSize = 16 << 20;  // takes more than a millisecond anywhere
  const auto job = make_job(2, host_of());
  int late = 0;
  for (int round = 0; round < 12; ++round) {
    Bytes sent_bytes(kSize, std::byte{1}), place(kSize);
    const auto sent = job[0]->send(message(1, round), block_of(sent_bytes));
    const auto received = job[1]->recv(message(0, round, Millis(1)), block_of(place));
    if (error_of(received).code() == Code::kTimeout) {
      ++late;
      std::fill(place.begin(), place.end(), std::byte{9});
      // Taken by nobody, or read and dropped: then it is asked for, or has been sent.
      Bytes again(kSize);
      const auto rest = job[1]->recv(message(-1, round), block_of(again));
      sent.wait();
      if (!rest.wait_for(20ms)) {
        job[1]->send(message(1, round), block_of(again));
        rest.wait();
      }
      ASSERT_EQ(std::count(place.begin(), place.end(), std::byte{9}), kSize);
    } else {
      sent.wait();
      ASSERT_EQ(std::count(place.begin(), place.end(), std::byte{1}), kSize);
    }
  }
  EXPECT_GT(late, 0);
}

TEST_P(Posts, WhatNobodyAsksForIsBoundedAndKeepsItsOrder) {
  constexpr int kMessages = 20'000;
  const auto job = make_job(2, host_of());
  std::vector<Bytes> all;
  std::vector<Future<int>> sent;
  for (int i = 0; i < kMessages; ++i) {
    all.push_back(bytes_of(1024, static_cast<unsigned>(i)));
    sent.push_back(job[0]->send(message(1), block_of(all.back())));
  }
  const auto ready =
      std::count_if(sent.begin(), sent.end(), [](const auto& one) { return one.ready(); });
  EXPECT_GT(ready, 1000);
  EXPECT_LT(ready, 5000);  // 4 MiB, and not 20
  for (int i = 0; i < kMessages; ++i) {
    Bytes got(1024);
    job[1]->recv(message(0), block_of(got)).wait();
    ASSERT_EQ(got, all[static_cast<size_t>(i)]);
  }
  for (const auto& one : sent) one.wait();
}

TEST_P(Posts, AnEmptyMessageArrivesAlsoWhenItHasToBeOffered) {
  const auto job = make_job(2, host_of());
  Bytes one(1), got(1), nothing;
  std::vector<Future<int>> sent;
  do {
    sent.push_back(job[0]->send(message(1), block_of(one)));
  } while (sent.back().ready());
  sent.push_back(job[0]->send(message(1), block_of(nothing)));
  for (size_t i = 0; i + 1 < sent.size(); ++i) job[1]->recv(message(0), block_of(got)).wait();
  EXPECT_EQ(job[1]->recv(message(0), block_of(nothing)).wait(), 0);
  for (const auto& message : sent) message.wait();
}

TEST_P(Posts, WhatWaitsBehindABlockingCallbackEndsInTime) {
  auto job = make_job(2, host_of());
  Bytes bytes(100);
  const auto first = job[0]->recv(message(1, 1), block_of(bytes));
  const auto second = job[0]->recv(message(1, 2), block_of(bytes));
  std::atomic<int> ended{0};
  first.on_ready([&, second] {
    EXPECT_EQ(error_of(second).code(), Code::kDisconnected);
    ++ended;
  });
  second.on_ready([&] { ++ended; });
  job[1].reset();
  const TimePoint begun = Clock::now();
  while (ended < 2 && Clock::now() - begun < 20s) std::this_thread::yield();
  EXPECT_EQ(ended, 2);
}

TEST_P(Posts, AReceiveThatNobodyWaitsForEndsInTime) {
  const auto job = make_job(2, host_of());
  Bytes place(100'000);
  std::atomic<int> ended{0};
  const auto received = job[1]->recv(message(0, 1, 50ms), block_of(place));
  const auto sent = job[0]->send(message(1, 2, 50ms), block_of(place));
  for (const auto& one : {received, sent}) one.on_ready([&] { ++ended; });
  const TimePoint begun = Clock::now();
  while (ended < 2 && Clock::now() - begun < 20s) std::this_thread::yield();
  EXPECT_EQ(error_of(received).code(), Code::kTimeout);
  EXPECT_THAT(error_of(received).what(), ContainsRegex("nothing came from rank 0 [(].+[)]"));
  EXPECT_EQ(error_of(sent).code(), Code::kTimeout);
  EXPECT_THAT(error_of(sent).what(), ContainsRegex("rank 1 [(].+[)] calls recv.* for tag 2"));
}

TEST_P(Posts, WhoIsGoneEndsWhatNeedsHim) {
  for (const bool had_a_line : {false, true}) {
    auto job = make_job(3, host_of());
    Bytes bytes(1'000'000), places[4];  // of one send or receive each
    for (Bytes& place : places) place.resize(bytes.size());
    if (had_a_line) {
      const auto sent = job[1]->send(message(0, 9), block_of(bytes));
      job[0]->recv(message(1, 9), block_of(places[0])).wait();
      sent.wait();
    }
    const auto from_him = job[0]->recv(message(1), block_of(places[0]));
    const auto from_any = job[0]->recv(message(-1, 4), block_of(places[1]));
    const auto from_other = job[0]->recv(message(2), block_of(places[2]));
    const auto to_him = job[2]->send(message(1), block_of(bytes));
    const TimePoint lost = Clock::now();
    job[1].reset();
    for (const auto& one : {from_him, from_any, to_him}) {
      const Error error = error_of(one);
      EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
    EXPECT_LT(Clock::now() - lost, 2s);
    EXPECT_EQ(error_of(job[0]->recv(message(1), block_of(places[3]))).code(), Code::kDisconnected);
    EXPECT_EQ(error_of(job[2]->send(message(1), block_of(bytes))).code(), Code::kDisconnected);
    EXPECT_FALSE(from_other.ready());
    const auto sent = job[2]->send(message(0), block_of(bytes));
    EXPECT_EQ(from_other.wait(), 2);
    sent.wait();
    // From anyone: he has been told of.
    const auto from_any_left = job[0]->recv(message(-1, 5), block_of(places[1]));
    const auto sent_to_any = job[2]->send(message(0, 5), block_of(bytes));
    EXPECT_EQ(from_any_left.wait(), 2);
    sent_to_any.wait();
  }
}

TEST_P(Posts, WhatWasSentArrivesAlthoughTheSenderHasEnded) {
  auto job = make_job(2, host_of());
  Bytes bytes = bytes_of(1000, 3);
  for (int i = 0; i < 100; ++i) job[0]->send(message(1), block_of(bytes)).wait();
  job[0].reset();
  for (int i = 0; i < 100; ++i) {
    Bytes got(1000);
    EXPECT_EQ(job[1]->recv(message(0), block_of(got)).wait(), 0);
    EXPECT_EQ(got, bytes);
  }
}

TEST_P(Posts, ThreadsThatSendFirstAtOnceShareALine) {
  constexpr int kThreads = 6;
  for (int round = 0; round < 100; ++round) {
    const auto job = make_job(2, host_of());
    std::vector<std::thread> threads;
    std::latch together(kThreads);
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        Bytes one(1);
        together.arrive_and_wait();
        job[0]->send(message(1, tag), block_of(one)).wait();
      });
    }
    for (int tag = 0; tag < kThreads; ++tag) {
      Bytes one(1);
      ASSERT_EQ(error_of(job[1]->recv(message(0, tag), block_of(one))).code(), Code::kOk);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// Ends this process: with 0 when all arrived, and the log told once why it went another way.
[[noreturn]] void exchange_without_attach() {
  if (const int error = farspan::testing::forbid_reading_processes()) {
    std::fprintf(stderr, "no filter: %s\n", std::strerror(error));
    _exit(1);
  }
  std::atomic<int> told{0};
  set_log_level(LogLevel::kInfo);
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) {
    told += text.find("its memory cannot be read here") != std::string_view::npos ? 1 : 0;
  });
  bool is_right = true;
  {
    const auto job = make_job(2);
    for (unsigned round = 0; round < 20; ++round) {
      Bytes bytes = bytes_of(1'000'000 * (round % 7) + 100'000, round), got(bytes.size());
      const auto sent = job[0]->send(message(1), block_of(bytes));
      is_right = is_right && job[1]->recv(message(0), block_of(got)).wait() == 0 && got == bytes;
      sent.wait();
    }
  }
  std::fprintf(stderr, "all %s, told %d times\n", is_right ? "right" : "wrong", told.load());
  _exit(is_right && told == 1 ? 0 : 1);
}

TEST(Post, WhereMemoryCannotBeReadMessagesComeThroughTheRing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exchange_without_attach(), ::testing::ExitedWithCode(0), "all right, told 1 times");
}

// Connects to a rank's post, and has no token.
class PostOfOthers : public farspan::testing::OneTransport<transport::make_shm_transport> {
 protected:
  farspan::testing::StreamPointer connect_to(Store& store, int rank) {
    std::istringstream fields(store.get("node/" + std::to_string(rank)));
    std::string field, endpoint;
    while (fields >> field) {
      if (field.starts_with("shm:@")) endpoint = field;
    }
    return connect(endpoint, Deadline::after(20s)).wait();
  }
  // What there is to read; nothing: the other end has closed, or waits for more.
  static size_t answer(transport::Stream& stream) {
    std::byte bytes[64];
    const iovec place{bytes, sizeof bytes};
    for (;;) {
      const auto result = stream.read(&place, 1);
      if (result.status == transport::IoStatus::kOk) return result.bytes;
      if (result.status != transport::IoStatus::kWouldBlock) return 0;
      if (!stream.expect_input()) continue;
      pollfd input{stream.read_descriptor(), POLLIN, 0};
      if (poll(&input, 1, 50) != 1) return 0;
    }
  }
};

TEST_F(PostOfOthers, TurnsAwayWhoHasNoTokenWhateverHeSays) {
  std::atomic<int> told{0};
  set_log_sink([&](LogLevel, std::string_view, std::string_view) { ++told; });
  const auto store = std::make_shared<HashStore>();
  const auto alone = testing::join_job(store, 0, 1);
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const auto stream = connect_to(*store, 0);
    cpu::Letter letter;
    letter.kind = static_cast<cpu::Letter::Kind>(round % 40);
    letter.offer = random();  // no token of its
    letter.from = 0;
    letter.bytes = round % 3 == 0 ? ~uint64_t{0} : random() % 100'000;
    letter.count = round % 5 == 0 ? ~uint64_t{0} / 2 : random();
    Bytes bytes(sizeof letter + random() % 5000);
    for (auto& one : bytes) one = static_cast<std::byte>(random());
    if (round % 4 != 0) std::memcpy(bytes.data(), &letter, sizeof letter);
    const iovec piece{bytes.data(), bytes.size()};
    stream->write(&piece, 1);  // the other end may have closed already
    EXPECT_EQ(answer(*stream), 0u) << "it was answered";
  }
  Bytes bytes(10), got(10);
  const auto sent = alone->send(message(0), block_of(bytes));
  alone->recv(message(0), block_of(got)).wait();
  sent.wait();
  set_log_sink(nullptr);
  EXPECT_GT(told, 0);
}

TEST(Post, HostsMayMeetOverIpv6) {
  const net::OwnedDescriptor probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  if (bind(probe.get(), reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) != 0) {
    GTEST_SKIP() << "this host has no IPv6";
  }
  const auto store = std::make_shared<HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      BackendContext context;
      context.bind_host = "::1";
      context.host_id = testing::own_host(rank);
      context.store = store;
      context.group = testing::whole_job(rank, 2);
      context.deadline = Deadline::after(60s);
      const auto backend = cpu::make_cpu_backend(context);
      Bytes bytes = bytes_of(300'000, static_cast<unsigned>(rank)), got(bytes.size());
      const auto sent = backend->send(message(1 - rank), block_of(bytes));
      EXPECT_EQ(backend->recv(message(1 - rank), block_of(got)).wait(), 1 - rank);
      EXPECT_EQ(got, bytes_of(got.size(), static_cast<unsigned>(1 - rank)));
      sent.wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(store->get("network/0"), HasSubstr("tcp:[::1]:"));
}

}  // namespace
}  // namespace farspan::dist
