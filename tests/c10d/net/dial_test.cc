// Connections and listeners with deadlines. The rules: c10d/net/dial.h.
#include <farspan/c10d/net/dial.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include <farspan/c10d/base/error.h>

#include "support/errors.h"

namespace farspan::net {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using ::testing::HasSubstr;

HostPort where(const std::vector<OwnedDescriptor>& listening) {
  return {"127.0.0.1", SocketAddress::local_of(listening[0].get()).port()};
}

struct Pair {
  std::vector<OwnedDescriptor> listening = listen_on({"127.0.0.1", 0}, Deadline::after(5s));
  OwnedDescriptor client = dial(where(listening), Deadline::after(5s));
  OwnedDescriptor server{accept4(listening[0].get(), nullptr, nullptr, SOCK_NONBLOCK)};
};

TEST(Dial, CarriesBytesBothWays) {
  Pair pair;
  send_all(pair.client.get(), "ping", 4, Deadline::after(5s));
  char bytes[8];
  ASSERT_EQ(receive_some(pair.server.get(), bytes, sizeof bytes, Deadline::after(5s)), 4u);
  EXPECT_EQ(std::string(bytes, 4), "ping");
  send_all(pair.server.get(), "pong!", 5, Deadline::after(5s));
  ASSERT_EQ(receive_some(pair.client.get(), bytes, sizeof bytes, Deadline::after(5s)), 5u);
}

TEST(Dial, NobodyThereIsAnErrorWithTheAddressAndTheReason) {
  HostPort gone = where(listen_on({"127.0.0.1", 0}, Deadline::after(5s)));
  // Many times: a socket may get the very port it dials, and must not take itself for the server.
  for (int i = 0; i < 200; ++i) {
    const Error error = error_of([&] { dial(gone, Deadline::after(5s)); });
    ASSERT_EQ(error.code(), Code::kUnavailable);
    ASSERT_THAT(error.what(), HasSubstr(gone.to_string() + ": Connection refused"));
  }
}

TEST(Dial, AnAddressThatSwallowsPacketsIsATimeout) {
  // A listener whose queue is full: Linux drops what else comes.
  const OwnedDescriptor full(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = resolve({"127.0.0.1", 0}, Deadline::after(5s)).front();
  ASSERT_EQ(bind(full.get(), address.get(), address.size()), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  const HostPort there{"127.0.0.1", SocketAddress::local_of(full.get()).port()};
  const OwnedDescriptor in_queue = dial(there, Deadline::after(5s));
  const auto start = Clock::now();
  const Error error = error_of([&] { dial(there, Deadline::after(50ms)); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST(Dial, SilenceIsATimeoutAndAClosedConnectionIsDisconnected) {
  Pair pair;
  char byte;
  EXPECT_EQ(
      error_of([&] { receive_some(pair.client.get(), &byte, 1, Deadline::after(20ms)); }).code(),
      Code::kTimeout);
  pair.server.reset();
  EXPECT_EQ(
      error_of([&] { receive_some(pair.client.get(), &byte, 1, Deadline::after(5s)); }).code(),
      Code::kDisconnected);
}

TEST(Dial, AReaderThatDoesNotReadIsATimeout) {
  Pair pair;
  const std::string much(32 << 20, 'x');
  EXPECT_EQ(error_of([&] {
              send_all(pair.client.get(), much.data(), much.size(), Deadline::after(50ms));
            }).code(),
            Code::kTimeout);
}

TEST(ListenOn, APortInUseIsAnErrorThatNamesIt) {
  const auto first = listen_on({"127.0.0.1", 0}, Deadline::after(5s));
  const Error error = error_of([&] { listen_on(where(first), Deadline::after(5s)); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr(where(first).to_string()));
}

TEST(ListenOn, AnAddressThatIsNotThisHostsIsAnErrorThatNamesIt) {
  const Error error = error_of([] { listen_on({"192.0.2.1", 0}, Deadline::after(5s)); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("192.0.2.1"));
}

TEST(ListenOn, AllAddressesOfANameGetOnePort) {
  const auto listening = listen_on({"localhost", 0}, Deadline::after(5s));
  ASSERT_FALSE(listening.empty());
  for (const auto& fd : listening) {
    EXPECT_EQ(SocketAddress::local_of(fd.get()).port(),
              SocketAddress::local_of(listening[0].get()).port());
    EXPECT_TRUE(SocketAddress::local_of(fd.get()).is_loopback());
  }
}

}  // namespace
}  // namespace farspan::net
