// Transport conformance: what every transport must do, written once. A test file instantiates
// TransportSuite with the transports it knows. The rules: c10d/transport/transport.h and README.md.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

#include "support/seeded_random.h"

namespace farspan::testing {

using transport::IoResult;
using transport::IoStatus;
using transport::Stream;
using namespace std::chrono_literals;

struct TransportKind {
  std::string name;
  std::function<std::unique_ptr<transport::Transport>(std::shared_ptr<net::Loop>, net::Reactor&)>
      make;
  std::string host = "127.0.0.1";
};

inline void PrintTo(const TransportKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string name_of_transport(const ::testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

inline constexpr auto kPatience = 20s;  // nothing here takes so long unless it hangs

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// False when nothing came in time.
inline bool wait_until_readable(Stream& stream, std::chrono::milliseconds most = kPatience) {
  if (!stream.expect_input()) return true;
  pollfd look{stream.read_descriptor(), POLLIN, 0};
  return poll(&look, 1, static_cast<int>(most.count())) == 1;
}
inline bool wait_until_writable(Stream& stream, std::chrono::milliseconds most = kPatience) {
  if (!stream.expect_room()) return true;
  pollfd look{stream.write_descriptor(), POLLOUT, 0};
  return poll(&look, 1, static_cast<int>(most.count())) == 1;
}

// Sends all of it, waiting for room; kOk, or how the stream has ended.
inline IoStatus send_all(Stream& stream, const std::byte* bytes, size_t size) {
  while (size > 0) {
    const iovec piece{const_cast<std::byte*>(bytes), size};
    const IoResult result = stream.write(&piece, 1);
    if (result.status == IoStatus::kOk) {
      EXPECT_GT(result.bytes, 0u);
      bytes += result.bytes;
      size -= result.bytes;
    } else if (result.status != IoStatus::kWouldBlock) {
      return result.status;
    } else if (!wait_until_writable(stream)) {
      ADD_FAILURE() << "no room came";
      return IoStatus::kFailed;
    }
  }
  return IoStatus::kOk;
}

// Reads exactly so many bytes; kOk, or how the stream has ended before.
inline IoStatus receive_all(Stream& stream, std::byte* bytes, size_t size) {
  while (size > 0) {
    const iovec place{bytes, size};
    const IoResult result = stream.read(&place, 1);
    if (result.status == IoStatus::kOk) {
      EXPECT_GT(result.bytes, 0u);
      bytes += result.bytes;
      size -= result.bytes;
    } else if (result.status != IoStatus::kWouldBlock) {
      return result.status;
    } else if (!wait_until_readable(stream)) {
      ADD_FAILURE() << "nothing came";
      return IoStatus::kFailed;
    }
  }
  return IoStatus::kOk;
}

inline std::vector<std::byte> noise(size_t size, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<std::byte> bytes(size);
  for (size_t at = 0; at < size; at += 8) {
    const uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, size - at));
  }
  return bytes;
}

// Two connected ends.
struct Line {
  std::unique_ptr<Stream> dialled, accepted;
};

// After each test all descriptors are closed.
class TransportSuite : public ::testing::TestWithParam<TransportKind> {
 protected:
  using Connected = std::variant<std::unique_ptr<Stream>, Error>;

  void SetUp() override {
    descriptors_before_ = open_descriptors();
    reactor_ = std::make_unique<net::Reactor>();
    loop_ = std::make_shared<net::Loop>(reactor_->timers());
    reactor_->add(loop_);
    transport_ = GetParam().make(loop_, *reactor_);
    listener_ = listen();
  }
  void TearDown() override {
    listener_.reset();
    loop_->close();
    reactor_->remove(*loop_);
    reactor_->stop();
    accepted_.clear();
    transport_.reset();
    reactor_.reset();
    loop_.reset();
    EXPECT_EQ(open_descriptors(), descriptors_before_);
  }

  std::unique_ptr<transport::Listener> listen() {
    return transport_->listen(GetParam().host, [this](std::unique_ptr<Stream> stream) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(stream));
      arrived_.notify_all();
    });
  }
  std::unique_ptr<Stream> next_accepted() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kPatience, [this] { return !accepted_.empty(); })) return nullptr;
    auto stream = std::move(accepted_.front());
    accepted_.pop_front();
    return stream;
  }
  // What connect() has come to; it must call back once, and in time.
  Connected connect(const std::string& endpoint, Deadline deadline = Deadline::after(kPatience)) {
    struct Call {
      std::mutex mutex;
      std::condition_variable changed;
      int count = 0;
      Connected result{std::unique_ptr<Stream>()};
    };
    auto call = std::make_shared<Call>();
    transport_->connect(endpoint, deadline, [call](auto result) {
      const std::lock_guard lock(call->mutex);
      ++call->count;
      call->result = std::move(result);
      call->changed.notify_all();
    });
    std::unique_lock lock(call->mutex);
    if (!call->changed.wait_for(lock, kPatience + 5s, [&] { return call->count > 0; })) {
      return Error(Code::kInternal, "connect() never called back");
    }
    EXPECT_EQ(call->count, 1);
    return std::move(call->result);
  }
  Line connect_line() {
    Line line;
    Connected connected = connect(listener_->endpoint());
    if (auto* error = std::get_if<Error>(&connected)) {
      ADD_FAILURE() << error->what();
      return line;
    }
    line.dialled = std::move(std::get<0>(connected));
    line.accepted = next_accepted();
    EXPECT_TRUE(line.accepted) << "nobody was accepted";
    return line;
  }
  Error failure_of(Connected connected) {
    if (auto* error = std::get_if<Error>(&connected)) return *error;
    ADD_FAILURE() << "it has connected";
    return Error(Code::kOk, "it has connected");
  }

  size_t descriptors_before_ = 0;
  std::unique_ptr<net::Reactor> reactor_;
  std::shared_ptr<net::Loop> loop_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::Listener> listener_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::unique_ptr<Stream>> accepted_;
};

TEST_P(TransportSuite, ReachesItsOwnEndpointsAndKnowsThoseOfOthers) {
  EXPECT_THAT(listener_->endpoint(), ::testing::StartsWith(std::string(transport_->name()) + ":"));
  EXPECT_TRUE(transport_->reaches(listener_->endpoint()));
  const auto second = listen();
  EXPECT_NE(second->endpoint(), listener_->endpoint());
  for (const std::string endpoint :
       {"", ":", "tcp", "tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:", "tcp:127.0.0.1:65536",
        "tcp:127.0.0.1:8x", "tcp:localhost:80", "tcp:[::1:80", "unix:@", "unix:@name",
        "unix:@name;host=elsewhere", "shm:@", "shm:@name;host=elsewhere",
        "loopback:", "loopback:1-2:3", "avian:2"}) {
    EXPECT_FALSE(transport_->reaches(endpoint)) << endpoint;
    const Error error = failure_of(connect(endpoint));
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << endpoint;
    EXPECT_THAT(error.what(), ::testing::HasSubstr(endpoint));
  }
}

TEST_P(TransportSuite, AnEmptyStreamWouldBlockAndHasRoom) {
  const Line line = connect_line();
  for (Stream* end : {line.dialled.get(), line.accepted.get()}) {
    std::byte byte;
    const iovec place{&byte, 1};
    EXPECT_EQ(end->read(&place, 1).status, IoStatus::kWouldBlock);
    EXPECT_FALSE(wait_until_readable(*end, 0ms));
    EXPECT_TRUE(wait_until_writable(*end, 0ms));
    EXPECT_NE(end->read_descriptor(), end->write_descriptor());
    EXPECT_FALSE(end->describe().empty());
  }
}

TEST_P(TransportSuite, BytesArriveInOrderBothWaysAtOnce) {
  const Line line = connect_line();
  constexpr size_t kBytes = 6 << 20;
  const auto there = noise(kBytes, 1), back = noise(kBytes, 2);
  const auto send_in_pieces = [](Stream& stream, const std::vector<std::byte>& bytes) {
    SeededRandom random(3);
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min(bytes.size() - at, 1 + random.below(300'000));
      ASSERT_EQ(send_all(stream, bytes.data() + at, size), IoStatus::kOk);
      at += size;
    }
  };
  std::thread dialled_sends([&] { send_in_pieces(*line.dialled, there); });
  std::thread accepted_sends([&] { send_in_pieces(*line.accepted, back); });
  std::vector<std::byte> got_back(kBytes), got_there(kBytes);
  std::thread dialled_reads(
      [&] { EXPECT_EQ(receive_all(*line.dialled, got_back.data(), kBytes), IoStatus::kOk); });
  EXPECT_EQ(receive_all(*line.accepted, got_there.data(), kBytes), IoStatus::kOk);
  for (auto* thread : {&dialled_sends, &accepted_sends, &dialled_reads}) thread->join();
  EXPECT_TRUE(got_there == there);
  EXPECT_TRUE(got_back == back);
}

TEST_P(TransportSuite, PiecesAndPlacesMayBeMany) {
  const Line line = connect_line();
  const auto bytes = noise(10'000, 4);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    const auto split = [&](std::byte* data) {
      std::vector<iovec> parts;
      for (size_t at = 0; at < bytes.size();) {
        const size_t size = std::min(bytes.size() - at, 1 + random.below(700));
        parts.push_back({data + at, size});
        at += size;
      }
      return parts;
    };
    const auto pieces = split(const_cast<std::byte*>(bytes.data()));
    const IoResult sent = line.dialled->write(pieces.data(), static_cast<int>(pieces.size()));
    ASSERT_EQ(sent.status, IoStatus::kOk);
    ASSERT_EQ(sent.bytes, bytes.size()) << "an empty stream has room for that";
    std::vector<std::byte> got(bytes.size());
    for (size_t done = 0; done < got.size();) {
      ASSERT_TRUE(wait_until_readable(*line.accepted));
      std::vector<iovec> places;
      size_t at = 0;
      for (const iovec& place : split(got.data())) {  // those that are not filled yet
        const size_t end = at + place.iov_len;
        if (end > done)
          places.push_back({got.data() + std::max(at, done), end - std::max(at, done)});
        at = end;
      }
      const IoResult result = line.accepted->read(places.data(), static_cast<int>(places.size()));
      ASSERT_EQ(result.status, IoStatus::kOk);
      done += result.bytes;
    }
    ASSERT_TRUE(got == bytes) << "seed " << seed;
  }
}

TEST_P(TransportSuite, AHundredMegabytesArriveWhole) {
  const Line line = connect_line();
  constexpr size_t kChunk = 5 << 20, kChunks = 20;
  const auto chunk = noise(kChunk, 5);
  std::thread sending([&] {
    for (size_t i = 0; i < kChunks; ++i) {
      ASSERT_EQ(send_all(*line.dialled, chunk.data(), kChunk), IoStatus::kOk);
    }
  });
  std::vector<std::byte> got(kChunk);
  size_t same = 0;
  for (size_t i = 0; i < kChunks; ++i) {
    if (receive_all(*line.accepted, got.data(), kChunk) != IoStatus::kOk) break;
    same += got == chunk;
  }
  sending.join();
  EXPECT_EQ(same, kChunks);
}

TEST_P(TransportSuite, AReaderThatDoesNotReadHoldsTheWriterUp) {
  const Line line = connect_line();
  const auto chunk = noise(1 << 20, 6);
  size_t sent = 0;
  for (;;) {
    const iovec piece{const_cast<std::byte*>(chunk.data()), chunk.size()};
    const IoResult result = line.dialled->write(&piece, 1);
    if (result.status == IoStatus::kWouldBlock) {
      // What is on its way may still make room; then there is none.
      if (!wait_until_writable(*line.dialled, 50ms)) break;
      continue;
    }
    ASSERT_EQ(result.status, IoStatus::kOk);
    sent += result.bytes;
    ASSERT_LT(sent, 64u << 20) << "it takes everything: there is no backpressure";
  }
  // Expect: room comes back when the other end reads, and nothing was lost.
  std::vector<std::byte> got(sent);
  ASSERT_EQ(receive_all(*line.accepted, got.data(), sent), IoStatus::kOk);
  EXPECT_TRUE(wait_until_writable(*line.dialled));
  EXPECT_EQ(send_all(*line.dialled, chunk.data(), 1000), IoStatus::kOk);
  EXPECT_EQ(receive_all(*line.accepted, got.data(), 1000), IoStatus::kOk);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + 1000, chunk.begin()));
}

TEST_P(TransportSuite, WhatWasSentBeforeTheEndIsReadBeforeIt) {
  for (const bool destroy : {false, true}) {
    Line line = connect_line();
    const auto bytes = noise(50'000, 7);
    ASSERT_EQ(send_all(*line.dialled, bytes.data(), bytes.size()), IoStatus::kOk);
    if (destroy) {
      line.dialled.reset();
    } else {
      line.dialled->shut();
    }
    std::vector<std::byte> got(bytes.size());
    EXPECT_EQ(receive_all(*line.accepted, got.data(), got.size()), IoStatus::kOk);
    EXPECT_TRUE(got == bytes);
    std::byte byte;
    EXPECT_EQ(receive_all(*line.accepted, &byte, 1), IoStatus::kClosed);
    EXPECT_TRUE(wait_until_readable(*line.accepted)) << "the end stays to be seen";
  }
}

TEST_P(TransportSuite, AfterShutBothEndsSeeTheEnd) {
  const Line line = connect_line();
  line.accepted->shut();
  line.accepted->shut();  // again: nothing
  std::byte byte{};
  for (Stream* end : {line.dialled.get(), line.accepted.get()}) {
    EXPECT_TRUE(wait_until_readable(*end));
    EXPECT_EQ(receive_all(*end, &byte, 1), IoStatus::kClosed);
  }
  // Expect: writing fails as well, at once or after the other side has said so; without a signal.
  const iovec piece{&byte, 1};
  EXPECT_EQ(line.accepted->write(&piece, 1).status, IoStatus::kClosed);
  IoStatus status = IoStatus::kOk;
  for (const Deadline end = Deadline::after(kPatience);
       status == IoStatus::kOk && !end.expired();) {
    status = line.dialled->write(&piece, 1).status;
  }
  EXPECT_EQ(status, IoStatus::kClosed);
}

TEST_P(TransportSuite, AShutWakesWhoWaits) {
  const Line line = connect_line();
  std::thread waiting([&] {
    std::byte byte;
    EXPECT_EQ(receive_all(*line.accepted, &byte, 1), IoStatus::kClosed);
  });
  std::this_thread::sleep_for(5ms);  // so that it waits, as a rule
  line.accepted->shut();
  waiting.join();
}

TEST_P(TransportSuite, APeerThatGoesDuringASendClosesTheStream) {
  for (int round = 0; round < 5; ++round) {
    Line line = connect_line();
    std::thread sending([&] {
      const auto bytes = noise(1 << 20, 8);
      IoStatus status = IoStatus::kOk;
      while (status == IoStatus::kOk) status = send_all(*line.dialled, bytes.data(), bytes.size());
      EXPECT_EQ(status, IoStatus::kClosed);
    });
    std::vector<std::byte> some(100'000);
    EXPECT_EQ(receive_all(*line.accepted, some.data(), some.size()), IoStatus::kOk);
    line.accepted.reset();
    sending.join();
  }
}

TEST_P(TransportSuite, ManyConnectionsAreKeptApart) {
  constexpr size_t kLines = 100;
  const size_t before = open_descriptors();
  std::vector<Line> lines;
  for (size_t i = 0; i < kLines; ++i) lines.push_back(connect_line());
  // Expect: at most three descriptors for each end.
  EXPECT_LE(open_descriptors() - before, 6 * kLines);
  for (size_t i = 0; i < kLines; ++i) {
    const auto bytes = noise(1000 + i, i);
    ASSERT_EQ(send_all(*lines[i].dialled, bytes.data(), bytes.size()), IoStatus::kOk);
  }
  for (size_t i = kLines; i-- > 0;) {
    std::vector<std::byte> got(1000 + i);
    ASSERT_EQ(receive_all(*lines[i].accepted, got.data(), got.size()), IoStatus::kOk);
    EXPECT_TRUE(got == noise(got.size(), i));
    std::byte byte;
    const iovec place{&byte, 1};
    EXPECT_EQ(lines[i].accepted->read(&place, 1).status, IoStatus::kWouldBlock);
  }
}

TEST_P(TransportSuite, ManyMayDialAtOnce) {
  constexpr int kThreads = 8, kEach = 25;
  std::atomic<int> connected{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kEach; ++j) connected += connect(listener_->endpoint()).index() == 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(connected, kThreads * kEach);
  for (int i = 0; i < kThreads * kEach; ++i) ASSERT_TRUE(next_accepted());
}

TEST_P(TransportSuite, WhereNobodyListensIsUnavailable) {
  const std::string endpoint = listener_->endpoint();
  listener_.reset();
  const Error error = failure_of(connect(endpoint));
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_THAT(error.operation(), ::testing::StartsWith("connect "));
}

TEST_P(TransportSuite, ConnectionsOutliveTheirListener) {
  const Line line = connect_line();
  listener_.reset();
  const auto bytes = noise(3000, 9);
  std::vector<std::byte> got(bytes.size());
  EXPECT_EQ(send_all(*line.accepted, bytes.data(), bytes.size()), IoStatus::kOk);
  EXPECT_EQ(receive_all(*line.dialled, got.data(), got.size()), IoStatus::kOk);
  EXPECT_TRUE(got == bytes);
}

TEST_P(TransportSuite, AfterItsLoopIsClosedConnectStillCallsBack) {
  const std::string endpoint = listener_->endpoint();
  loop_->close();
  // A unix socket of a listener that is closed, or a TCP loop that is: an error. Loopback needs
  // none.
  auto result = connect(endpoint);
  if (transport_->name() != "loopback") {
    EXPECT_THAT(failure_of(std::move(result)).code(),
                ::testing::AnyOf(Code::kUnavailable, Code::kShutdown));
  }
}

TEST_P(TransportSuite, EverythingMayEndWhileItIsUsed) {
  for (uint64_t round = 0; round < 20; ++round) {
    const auto second = listen();
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 3; ++i) {  // dial, send, read, hang up, over and over
      threads.emplace_back([&, i] {
        SeededRandom random(round * 3 + i);
        const auto bytes = noise(200'000, i);
        while (!stop) {
          auto connected = connect(i % 2 ? listener_->endpoint() : second->endpoint());
          if (connected.index() != 0) continue;
          auto& stream = *std::get<0>(connected);
          iovec piece{const_cast<std::byte*>(bytes.data()), 1 + random.below(bytes.size())};
          stream.write(&piece, 1);
          std::byte byte;
          piece = {&byte, 1};
          stream.read(&piece, 1);
          if (random.chance(0.5)) stream.shut();
        }
      });
    }
    threads.emplace_back([&] {  // and the other ends do the same
      SeededRandom random(round);
      while (!stop) {
        std::unique_ptr<Stream> stream;
        {
          const std::lock_guard lock(mutex_);
          if (!accepted_.empty()) {
            stream = std::move(accepted_.front());
            accepted_.pop_front();
          }
        }
        if (!stream) {
          std::this_thread::yield();
          continue;
        }
        std::byte bytes[5000];
        const iovec place{bytes, 1 + random.below(sizeof bytes)};
        if (random.chance(0.5)) stream->read(&place, 1);
        if (random.chance(0.5)) stream->write(&place, 1);
      }
    });
    std::this_thread::sleep_for(5ms);
    stop = true;
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace farspan::testing
