// Addresses as people write them. The rules: c10d/net/address.h.
#include <farspan/c10d/net/address.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <farspan/c10d/base/error.h>

#include "support/errors.h"

namespace farspan::net {
namespace {

using namespace std::chrono_literals;
using testing::error_of;

TEST(HostPort, IsReadFromNamesAndBothKindsOfAddress) {
  EXPECT_EQ(parse_host_port("node-1.example:29500"), (HostPort{"node-1.example", 29500}));
  EXPECT_EQ(parse_host_port("10.0.0.1:0"), (HostPort{"10.0.0.1", 0}));
  EXPECT_EQ(parse_host_port("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(parse_host_port("[fe80::1%eth0]:1"), (HostPort{"fe80::1%eth0", 1}));
}

TEST(HostPort, IsWrittenAsItIsRead) {
  for (const char* text : {"host:1", "10.0.0.1:80", "[::1]:29500"}) {
    EXPECT_EQ(parse_host_port(text).to_string(), text);
  }
}

TEST(HostPort, ARefusalSaysWhatIsWrong) {
  const auto why = [](const char* text) {
    return error_of([&] { parse_host_port(text); }).message();
  };
  EXPECT_EQ(why("host"), "'host': the port is missing");
  EXPECT_EQ(why("[::1]"), "'[::1]': the port is missing");
  EXPECT_EQ(why("[::1]80"), "'[::1]80': the port is missing");
  EXPECT_EQ(why("[::1]x:80"), "'[::1]x:80': after ']' comes ':' and the port");
  EXPECT_EQ(why("fe80::1:80"), "'fe80::1:80': an IPv6 address stands in brackets");
  EXPECT_EQ(why(":80"), "':80': the host is missing");
}

TEST(HostPort, WhatIsNoneIsRefusedWithTheText) {
  for (const std::string& text :
       {std::string(), std::string("host"), std::string(":80"), std::string("host:"),
        std::string("host:http"), std::string("host:65536"), std::string("host:-1"),
        std::string("host: 80"), std::string("::1:80"), std::string("[::1]"),
        std::string("[::1]80"), std::string("[]:80"), std::string("two words:80"),
        std::string("a/b:80"), std::string("a\0b:80", 6), std::string(254, 'a') + ":80"}) {
    SCOPED_TRACE("'" + text + "'");
    const Error error = error_of([&] { parse_host_port(text); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_FALSE(error.advice().empty());
  }
}

TEST(SocketAddress, KnowsLoopbackAndWildcard) {
  const auto first = [](const char* host) {
    return resolve({host, 80}, Deadline::after(5s)).front();
  };
  EXPECT_TRUE(first("127.0.1.1").is_loopback());
  EXPECT_TRUE(first("::1").is_loopback());
  EXPECT_TRUE(first("::ffff:127.0.0.1").is_loopback());
  EXPECT_FALSE(first("10.0.0.1").is_loopback());
  EXPECT_TRUE(first("0.0.0.0").is_wildcard());
  EXPECT_TRUE(first("::").is_wildcard());
  EXPECT_FALSE(first("::1").is_wildcard());
  EXPECT_EQ(first("::1").to_string(), "[::1]:80");
  EXPECT_EQ(first("1.2.3.4").to_string(), "1.2.3.4:80");
  EXPECT_EQ(SocketAddress().to_string(), "(no address)");
}

TEST(Resolve, FindsEachAddressOfAHostOnce) {
  const auto all = resolve({"localhost", 1}, Deadline::after(5s));
  ASSERT_FALSE(all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(all[i].is_loopback());
    EXPECT_EQ(all[i].port(), 1);
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(all[i] == all[j]);
  }
}

TEST(Resolve, AHostThatDoesNotExistIsNamed) {
  const Error error = error_of([] { resolve({"no-such-host.invalid", 1}, Deadline::after(20s)); });
  EXPECT_TRUE(error.code() == Code::kUnavailable || error.code() == Code::kTimeout);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace farspan::net
