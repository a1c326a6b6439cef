// What is special about TCP. The rules: c10d/transport/README.md.
#include <farspan/c10d/transport/tcp/tcp_transport.h>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/owned_descriptor.h>

#include "c10d/transport/one_transport.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using TcpTransportTest = OneTransport<transport::make_tcp_transport>;

TEST_F(TcpTransportTest, AHostThatDoesNotAnswerIsATimeout) {
  // A listener whose backlog is full drops what comes, as a host does that is not there.
  const net::OwnedDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string endpoint = "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  std::vector<Future<StreamPointer>> attempts;
  for (int i = 0; i < 6; ++i) {
    attempts.push_back(connect(endpoint, Deadline::after(milliseconds(150))));
  }
  int timeouts = 0;
  for (const auto& attempt : attempts) {
    ASSERT_TRUE(attempt.wait_for(Millis(20'000)));
    if (!attempt.has_error()) continue;  // one or two find room
    EXPECT_EQ(attempt.error().code(), Code::kTimeout);
    EXPECT_GE(attempt.error().elapsed(), milliseconds(150));
    EXPECT_EQ(attempt.error().operation(), "connect " + endpoint);
    EXPECT_FALSE(attempt.error().advice().empty());
    ++timeouts;
  }
  EXPECT_GE(timeouts, 3);
}

TEST_F(TcpTransportTest, SpeaksIpv6) {
  std::unique_ptr<transport::Listener> listener;
  try {
    listener = transport_->listen("::1", [](std::unique_ptr<transport::Stream>) {});
  } catch (const Error& e) {
    GTEST_SKIP() << "this host has no IPv6: " << e.what();
  }
  EXPECT_THAT(listener->endpoint(), ::testing::StartsWith("tcp:[::1]:"));
  const auto connected = connect(listener->endpoint(), Deadline::after(seconds(20)));
  ASSERT_TRUE(connected.wait_for(Millis(20'000)));
  EXPECT_FALSE(connected.has_error());
}

TEST_F(TcpTransportTest, ListensOnNumericAddressesOfThisHostOnly) {
  const auto listen_on = [&](const std::string& host) {
    return code_of([&] { transport_->listen(host, [](std::unique_ptr<transport::Stream>) {}); });
  };
  EXPECT_EQ(listen_on("localhost"), Code::kInvalidArgument);
  EXPECT_EQ(listen_on(""), Code::kInvalidArgument);
  EXPECT_EQ(listen_on("203.0.113.7"), Code::kUnavailable);
}

TEST_F(TcpTransportTest, NoticesAHostThatIsGoneThoughNothingIsSent) {
  Promise<StreamPointer> accepted;
  const auto listener = transport_->listen(
      "127.0.0.1",
      [&](std::unique_ptr<transport::Stream> stream) { accepted.set_value(std::move(stream)); });
  const auto dialled = connect(listener->endpoint(), Deadline::after(seconds(20)));
  for (const auto& end : {dialled, accepted.future()}) {
    ASSERT_TRUE(end.wait_for(Millis(20'000)));
    const int fd = end.value()->read_descriptor();
    const auto option = [fd](int level, int name) {
      int value = -1;
      socklen_t size = sizeof value;
      getsockopt(fd, level, name, &value, &size);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPIDLE) +
                  option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
              60);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
  }
}

}  // namespace
}  // namespace farspan::testing
