// What is special about unix sockets. The rules: c10d/transport/README.md.
#include <farspan/c10d/transport/unix/unix_transport.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/owned_descriptor.h>

#include "c10d/transport/one_transport.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The address in "unix:@NAME;host=ID".
std::pair<sockaddr_un, socklen_t> address_of(const std::string& endpoint) {
  const std::string name = endpoint.substr(6, endpoint.find(';') - 6);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

class UnixTransportTest : public OneTransport<transport::make_unix_transport> {
 protected:
  std::unique_ptr<transport::Listener> listen() {
    return transport_->listen("", [this](std::unique_ptr<transport::Stream>) { ++accepted_; });
  }

  std::atomic<int> accepted_{0};
};

// A listener that accepts nobody, with room for few; its endpoint has this host's id.
class Stuffed {
 public:
  explicit Stuffed(std::string endpoint) : endpoint_(std::move(endpoint)) {
    const auto at = endpoint_.find(';');
    endpoint_.insert(at, "-stuffed");
    const auto [address, size] = address_of(endpoint_);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(fd_.get(), 0), 0);
  }
  const std::string& endpoint() const { return endpoint_; }
  net::OwnedDescriptor accept_one() const {
    return net::OwnedDescriptor(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

 private:
  const net::OwnedDescriptor fd_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string endpoint_;
};

TEST_F(UnixTransportTest, AFullBacklogIsWaitedForUntilTheDeadlineAndNobodyIsBlocked) {
  const auto listener = listen();
  const Stuffed stuffed(listener->endpoint());
  const auto first = connect(stuffed.endpoint(), Deadline::after(seconds(20)));
  ASSERT_TRUE(first.ready());
  ASSERT_FALSE(first.has_error());
  const TimePoint begun = Clock::now();
  const auto second = connect(stuffed.endpoint(), Deadline::after(milliseconds(60)));
  EXPECT_FALSE(second.ready()) << "connect() returned at once";
  ASSERT_TRUE(second.wait_for(Millis(20'000)));
  ASSERT_TRUE(second.has_error());
  EXPECT_EQ(second.error().code(), Code::kTimeout);
  EXPECT_GE(second.error().elapsed(), milliseconds(60));
  EXPECT_GE(Clock::now() - begun, milliseconds(60));
  EXPECT_THAT(second.error().operation(), ::testing::HasSubstr("-stuffed"));
}

TEST_F(UnixTransportTest, ItConnectsWhenTheBacklogHasRoomAgain) {
  const auto listener = listen();
  const Stuffed stuffed(listener->endpoint());
  const auto first = connect(stuffed.endpoint(), Deadline::after(seconds(20)));
  const auto second = connect(stuffed.endpoint(), Deadline::after(seconds(20)));
  ASSERT_FALSE(second.ready());
  const auto accepted = stuffed.accept_one();
  ASSERT_TRUE(second.wait_for(Millis(20'000)));
  EXPECT_FALSE(second.has_error());
}

TEST_F(UnixTransportTest, APeerOfAnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto listener = listen();
  const auto [address, size] = address_of(listener->endpoint());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // only system calls in here
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(3);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) _exit(4);
    char byte;
    _exit(read(fd, &byte, 1) == 0 ? 0 : 5);  // the other side hangs up
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(accepted_, 0);
}

TEST_F(UnixTransportTest, ANameThatIsTooLongIsNoEndpoint) {
  const auto listener = listen();
  std::string endpoint = listener->endpoint();
  endpoint.insert(6, std::string(200, 'x'));
  const auto result = connect(endpoint, Deadline::never());
  ASSERT_TRUE(result.ready());
  EXPECT_EQ(result.error().code(), Code::kInvalidArgument);
}

TEST_F(UnixTransportTest, LeavesNoFileBehind) {
  const auto listener = listen();
  EXPECT_EQ(listener->endpoint().compare(0, 6, "unix:@"), 0) << "the name is abstract";
}

}  // namespace
}  // namespace farspan::testing
