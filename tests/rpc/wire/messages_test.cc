// The rules under test: rpc/wire/WIRE.md, "The handshake" and "Errors".
#include <farspan/rpc/wire/messages.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "rpc/wire/frame_bytes.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;
using wire::Hello;

// clang-format off
const Bytes kHello = bytes({
    0, 0, 0, 0, 8, 0, 5, 0,                          // root: 8 words of data, 5 pointers
    1, 2, 0, 0, 3, 0, 0, 0,                          // minVersion, maxVersion, rank
    5, 0, 0, 0, 0, 0, 0, 0,                          // features
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // instanceHigh
    0x09, 0, 0, 0, 0, 0, 0, 0x80,                    // instanceLow
    0x67, 0x12, 0, 0, 0, 0, 0, 0,                    // pid
    0, 0x20, 0, 0, 0, 0x7f, 0, 0,                    // probe
    0x31, 0, 0, 0, 0, 0, 0, 0x40,                    // line
    0x32, 0, 0, 0, 0, 0, 0, 0x50,                    // laneOf
    0x11, 0, 0, 0, 0x1a, 0, 0, 0,                    // name: 3 bytes, with the NUL
    0x11, 0, 0, 0, 0x1a, 0, 0, 0,                    // generation: 3
    0x11, 0, 0, 0, 0x12, 0, 0, 0,                    // host: 2
    0x11, 0, 0, 0, 0x1f, 0, 0, 0,                    // functions: structs, 3 words in all
    0x25, 0, 0, 0, 0x1a, 0, 0, 0,                    // authentication: 3 bytes
    'p', 's', 0, 0, 0, 0, 0, 0,
    'g', '7', 0, 0, 0, 0, 0, 0,
    'h', 0, 0, 0, 0, 0, 0, 0,
    4, 0, 0, 0, 1, 0, 2, 0,                          // one Function: 1 word of data, 2 pointers
    0xcd, 0xab, 0, 0, 0, 0, 0, 0,                    // its id,
    5, 0, 0, 0, 0x12, 0, 0, 0,                       // name
    5, 0, 0, 0, 0x1a, 0, 0, 0,                       // and signature
    'f', 0, 0, 0, 0, 0, 0, 0,
    '(', ')', 0, 0, 0, 0, 0, 0,
    'k', 'e', 'y', 0, 0, 0, 0, 0,
});
const Bytes kFailure = bytes({
    0, 0, 0, 0, 2, 0, 6, 0,                          // root: 2 words of data, 6 pointers
    1, 0, 0, 0, 0, 0, 0, 0,                          // code: TIMEOUT
    0x23, 0xfa, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,  // elapsedUs: 1500, xor its default of -1
    0x15, 0, 0, 0, 0x2a, 0, 0, 0,                    // message: 5 bytes, with the NUL
    0x15, 0, 0, 0, 0x1a, 0, 0, 0,                    // worker: 3
    0x15, 0, 0, 0, 0x1a, 0, 0, 0,                    // operation: 3
    0x15, 0, 0, 0, 0x0a, 0, 0, 0,                    // advice: 1
    0x15, 0, 0, 0, 0x0a, 0, 0, 0,                    // remoteType: 1
    0x15, 0, 0, 0, 0x0a, 0, 0, 0,                    // trail: 1
    'l', 'a', 't', 'e', 0, 0, 0, 0,
    'p', 's', 0, 0, 0, 0, 0, 0,
    'o', 'p', 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
});
// clang-format on

Hello golden_hello() {
  Hello hello;
  hello.min_version = 1;
  hello.max_version = 2;
  hello.features = 5;
  hello.name = "ps";
  hello.rank = 3;
  hello.instance = {0x1122334455667788, 0x8000000000000009};
  hello.generation = "g7";
  hello.pid = 4711;
  hello.host = "h";
  hello.functions = {{0xabcd, "f", "()"}};
  hello.authentication = "key";
  hello.probe = 0x7f0000002000;
  hello.line = 0x4000000000000031;
  hello.lane_of = 0x5000000000000032;
  return hello;
}

void expect_equal(const Hello& a, const Hello& b) {
  EXPECT_EQ(a.min_version, b.min_version);
  EXPECT_EQ(a.max_version, b.max_version);
  EXPECT_EQ(a.features, b.features);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.instance, b.instance);
  EXPECT_EQ(a.generation, b.generation);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.authentication, b.authentication);
  EXPECT_EQ(a.probe, b.probe);
  EXPECT_EQ(a.line, b.line);
  EXPECT_EQ(a.lane_of, b.lane_of);
  ASSERT_EQ(a.functions.size(), b.functions.size());
  for (size_t i = 0; i < a.functions.size(); ++i) {
    EXPECT_EQ(a.functions[i].id, b.functions[i].id);
    EXPECT_EQ(a.functions[i].name, b.functions[i].name);
    EXPECT_EQ(a.functions[i].signature, b.functions[i].signature);
  }
}

// 8-byte aligned, as frames give it.
Buffer aligned(std::span<const std::byte> meta) { return Buffer::copy_of(meta); }

TEST(HelloMessage, IsWrittenAsTheGoldenBytes) {
  EXPECT_TRUE(same(wire::encode(golden_hello()).span(), kHello));
}

TEST(HelloMessage, IsReadFromTheGoldenBytes) {
  expect_equal(wire::decode_hello(aligned(kHello).span()), golden_hello());
}

TEST(HelloMessage, OfANewerPeerWithMoreFieldsIsReadAsFarAsItIsKnown) {
  constexpr size_t kWord = 8, kDataEnd = 9 * kWord, kPointers = 5;
  Bytes newer = kHello;
  newer[4] = std::byte{9};  // one word of data and one pointer more
  newer[6] = std::byte{6};
  for (size_t i = 0; i < kPointers; ++i) {
    std::byte& offset = newer[kDataEnd + i * kWord];
    offset = static_cast<std::byte>(static_cast<int>(offset) + 4);  // one word further
  }
  const auto at = [&](size_t words) {
    return newer.begin() + static_cast<ptrdiff_t>(words * kWord);
  };
  newer.insert(at(9 + kPointers), kWord, std::byte{0});
  newer.insert(at(9), kWord, std::byte{0x77});
  expect_equal(wire::decode_hello(aligned(newer).span()), golden_hello());
}

TEST(HelloMessage, OfAnOlderPeerWithFewerFieldsHasDefaults) {
  const Bytes older = bytes({0, 0, 0, 0, 1, 0, 0, 0,  // one word of data, no pointers
                             1, 1, 0, 0, 9, 0, 0, 0});
  const Hello hello = wire::decode_hello(aligned(older).span());
  EXPECT_EQ(hello.rank, 9);
  EXPECT_EQ(hello.name, "");
  EXPECT_EQ(hello.features, 0u);
  EXPECT_TRUE(hello.functions.empty());
}

TEST(HelloMessage, HoldsManyFunctions) {
  Hello hello = golden_hello();
  hello.functions.clear();
  for (uint64_t i = 0; i < 5000; ++i) {
    hello.functions.push_back({i << 32, std::string(i % 200, 'n'), std::string(i % 77, 's')});
  }
  const Buffer meta = wire::encode(hello);
  EXPECT_EQ(meta.size() % 8, 0u);
  expect_equal(wire::decode_hello(meta.span()), hello);
}

TEST(HelloMessage, TextsAreAnyBytes) {
  Hello hello = golden_hello();
  hello.name = std::string("a\0\xff\n", 4);
  hello.authentication = std::string("\0\0\1", 3);
  expect_equal(wire::decode_hello(wire::encode(hello).span()), hello);
}

TEST(HelloMessage, AListLongerThanItsMessageIsCorrupt) {
  Bytes liar = kHello;
  // A million functions that take no space: each would be read as empty.
  const auto tag = 14 * 8;
  const Bytes million = bytes({0x00, 0x09, 0x3d, 0, 0, 0, 0, 0});
  std::copy(million.begin(), million.end(), liar.begin() + tag);
  const Error error = error_of([&] { wire::decode_hello(aligned(liar).span()); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_EQ(error.operation(), "read a message");
}

TEST(HelloMessage, WhatIsNoMessageIsCorrupt) {
  for (const Bytes& meta :
       {bytes({}), bytes({1, 2, 3}), bytes({0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0}),
        Bytes(64, std::byte{0x55})}) {
    const Error error = error_of([&] { wire::decode_hello(aligned(meta).span()); });
    EXPECT_EQ(error.code(), Code::kCorrupt) << meta.size();
  }
}

TEST(ErrorMessage, IsWrittenAsTheGoldenBytes) {
  Error error(Code::kTimeout, "late");
  error.worker("ps").operation("op").elapsed(Micros(1500));
  EXPECT_TRUE(same(wire::encode(error).span(), kFailure));
}

TEST(ErrorMessage, IsReadFromTheGoldenBytes) {
  const Error error = wire::decode_error(aligned(kFailure).span());
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.message(), "late");
  EXPECT_EQ(error.worker(), "ps");
  EXPECT_EQ(error.operation(), "op");
  EXPECT_EQ(error.advice(), "");
  EXPECT_EQ(error.remote_type(), "");
  EXPECT_EQ(error.trail(), "");
  EXPECT_EQ(error.elapsed(), Micros(1500));
}

TEST(ErrorMessage, KeepsAllThatAnErrorSays) {
  Error error(Code::kRemote, "no such layer");
  error.worker("ps").operation("rpc_sync forward").advice("look there");
  error.remote_type("std::out_of_range").trail("worker 'a'").trail("worker 'b'");
  const Error read = wire::decode_error(wire::encode(error).span());
  EXPECT_STREQ(read.what(), error.what());
  EXPECT_EQ(read.trail(), error.trail());
  EXPECT_LT(read.elapsed().count(), 0) << "no time was given";
}

TEST(ErrorMessage, LongTextsAreCutAndSayHowLongTheyWere) {
  const std::string text(3'000'000, 'x');
  Error error(Code::kRemote, text);
  error.worker(text).operation(text).advice(text).remote_type(text).trail(text);
  const Buffer meta = wire::encode(error);
  EXPECT_LT(meta.size(), wire::FrameLimits{}.max_meta_bytes / 16);
  const Error read = wire::decode_error(meta.span());
  for (const std::string& part :
       {read.message(), read.worker(), read.operation(), read.advice(), read.remote_type()}) {
    EXPECT_EQ(part.size(), (64u << 10) + std::string("... (3000000 bytes in all)").size());
    EXPECT_THAT(part, StartsWith("xxxx"));
    EXPECT_THAT(part, EndsWith("x... (3000000 bytes in all)"));
  }
}

TEST(ErrorMessage, ACodeThatIsNotKnownIsUnknownAndOkIsNoError) {
  for (const int code : {0, 16, 254, 255}) {
    Bytes failure = kFailure;
    failure[8] = static_cast<std::byte>(code);
    EXPECT_EQ(wire::decode_error(aligned(failure).span()).code(), Code::kUnknown) << code;
  }
  Bytes failure = kFailure;
  failure[9] = std::byte{1};  // 257
  EXPECT_EQ(wire::decode_error(aligned(failure).span()).code(), Code::kUnknown);
}

TEST(ErrorMessage, AnImpossibleTimeIsBounded) {
  for (const int64_t us : {std::numeric_limits<int64_t>::max(), int64_t{1} << 60}) {
    Bytes failure = kFailure;
    const int64_t raw = us ^ -1;
    std::memcpy(failure.data() + 16, &raw, sizeof raw);
    const Error error = wire::decode_error(aligned(failure).span());
    EXPECT_GT(error.elapsed(), std::chrono::hours(24 * 365));
  }
  Bytes failure = kFailure;
  const int64_t negative = int64_t{-5} ^ -1;
  std::memcpy(failure.data() + 16, &negative, sizeof negative);
  EXPECT_LT(wire::decode_error(aligned(failure).span()).elapsed().count(), 0);
}

TEST(InstanceId, IsNotDrawnTwice) {
  const auto a = wire::InstanceId::random(), b = wire::InstanceId::random();
  EXPECT_FALSE(a == b);
  EXPECT_TRUE(a == a);
}

}  // namespace
}  // namespace farspan::testing
