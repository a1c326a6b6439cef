// The rules under test: c10d/net/loop.h.
#include <farspan/c10d/net/loop.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <thread>

#include <farspan/c10d/base/unfinished.h>
#include <farspan/c10d/net/owned_descriptor.h>

#include "c10d/net/tasks.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using net::Loop;
using net::OwnedDescriptor;

sockaddr_storage local_port(uint16_t port) {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr_in&>(storage);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return storage;
}

const sockaddr* as_sockaddr(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// A descriptor that a callback delivered, or libuv's error.
struct Delivered {
  int fd = -1;
  int error = 0;
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() { reactor_.add(loop_); }
  ~LoopTest() override {
    loop_->close();
    reactor_.stop();
    for (auto& future : accepted_) {
      if (future.ready()) close(future.value());
    }
  }
  // Listens on 127.0.0.1; accepted descriptors come through accepted().
  std::unique_ptr<Loop::Listening> listen() {
    const sockaddr_storage any = local_port(0);
    return loop_->listen_tcp(
        as_sockaddr(any),
        [this](int fd) {
          const std::lock_guard lock(mutex_);
          accepted_.push_back(make_ready_future(fd));
        },
        &bound_);
  }
  size_t accepted() {
    const std::lock_guard lock(mutex_);
    return accepted_.size();
  }
  Future<Delivered> connect(const sockaddr_storage& address, uint64_t* ticket = nullptr) {
    Promise<Delivered> promise;
    const uint64_t id = loop_->connect_tcp(as_sockaddr(address), [promise](int fd, int error) {
      promise.set_value(Delivered{fd, error});
    });
    if (ticket) *ticket = id;
    return promise.future();
  }

  net::Reactor reactor_;
  std::shared_ptr<Loop> loop_ = std::make_shared<Loop>(reactor_.timers());
  sockaddr_storage bound_{};
  std::mutex mutex_;
  std::vector<Future<int>> accepted_;
};

TEST_F(LoopTest, ConnectsToWhoListens) {
  const auto listening = listen();
  const auto connected = connect(bound_);
  ASSERT_TRUE(connected.wait_for(Millis(10'000)));
  const OwnedDescriptor fd(connected.value().fd);
  ASSERT_EQ(connected.value().error, 0);
  ASSERT_TRUE(eventually([&] { return accepted() == 1; }));
  const int other = accepted_[0].value();
  ASSERT_EQ(write(fd.get(), "hello", 5), 5);
  pollfd in{other, POLLIN, 0};
  ASSERT_EQ(poll(&in, 1, 10'000), 1);
  char text[8] = "";
  EXPECT_EQ(read(other, text, sizeof text), 5);
  EXPECT_STREQ(text, "hello");
  // Expect: not handed down to programs that are started.
  EXPECT_TRUE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(other, F_GETFD) & FD_CLOEXEC);
}

TEST_F(LoopTest, AcceptsManyAtOnce) {
  const auto listening = listen();
  std::vector<Future<Delivered>> all;
  for (int i = 0; i < 100; ++i) all.push_back(connect(bound_));
  for (const auto& one : all) {
    ASSERT_TRUE(one.wait_for(Millis(10'000)));
    EXPECT_EQ(one.value().error, 0);
    close(one.value().fd);
  }
  EXPECT_TRUE(eventually([&] { return accepted() == 100; }));
}

TEST_F(LoopTest, ARefusedConnectionIsAnError) {
  listen().reset();  // a port that was free a moment ago, and that nobody listens on
  const auto connected = connect(bound_);
  ASSERT_TRUE(connected.wait_for(Millis(10'000)));
  EXPECT_EQ(connected.value().fd, -1);
  EXPECT_EQ(connected.value().error, UV_ECONNREFUSED);
}

TEST_F(LoopTest, APortInUseIsAnError) {
  const auto listening = listen();
  sockaddr_storage again{};
  EXPECT_EQ(code_of([&] {
              loop_->listen_tcp(
                  as_sockaddr(bound_), [](int fd) { close(fd); }, &again);
            }),
            Code::kUnavailable);
}

// A listener with a full queue: further attempts stay under way.
struct FullListener {
  OwnedDescriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_storage address = local_port(0);
  std::vector<OwnedDescriptor> queue;
  FullListener() {
    socklen_t size = sizeof(sockaddr_in);
    EXPECT_EQ(bind(socket.get(), as_sockaddr(address), size), 0);
    EXPECT_EQ(::listen(socket.get(), 0), 0);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    for (int i = 0; i < 4; ++i) {
      queue.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      ::connect(queue.back().get(), as_sockaddr(address), size);
    }
  }
};

TEST_F(LoopTest, AnAttemptCanBeCancelled) {
  const FullListener full;
  uint64_t ticket = 0;
  const auto connected = connect(full.address, &ticket);
  EXPECT_FALSE(connected.wait_for(Millis(20)));
  loop_->cancel_connect(ticket);
  ASSERT_TRUE(connected.ready());
  EXPECT_EQ(connected.value().error, UV_ECANCELED);
  loop_->cancel_connect(ticket);
}

TEST_F(LoopTest, CloseEndsAttemptsAndRefusesNewOnes) {
  const FullListener full;
  const auto listening = listen();
  const auto connected = connect(full.address);
  loop_->close();
  ASSERT_TRUE(connected.ready());
  EXPECT_EQ(connected.value().error, UV_ECANCELED);
  EXPECT_THROW(connect(bound_), Error);
  EXPECT_THROW(listen(), Error);
}

TEST_F(LoopTest, ACallbackThatBlocksDoesNotKeepTheLoopFromTurning) {
  const auto client = [this] {
    OwnedDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), as_sockaddr(bound_), sizeof(sockaddr_in)), 0);
    return fd;
  };
  std::atomic<int> count{0};
  Promise<void> second;
  Promise<bool> in_time;
  const sockaddr_storage any = local_port(0);
  const auto listening = loop_->listen_tcp(
      as_sockaddr(any),
      [&](int fd) {
        const OwnedDescriptor accepted(fd);
        if (++count == 2) return (void)second.set_value();
        const OwnedDescriptor other = client();
        in_time.set_value(second.future().wait_for(Millis(10'000)));
      },
      &bound_);
  const OwnedDescriptor first = client();
  ASSERT_TRUE(in_time.future().wait_for(Millis(20'000)));
  EXPECT_TRUE(in_time.future().value());
}

// An attempt succeeds while the loop turns for another reason: the end of a listener. There is no
// reactor here that would turn it later.
TEST(LoopOutcomes, AreRunByWhoeverTurnsTheLoop) {
  net::Timers timers;
  const auto loop = std::make_shared<Loop>(timers);
  const sockaddr_storage any = local_port(0);
  sockaddr_storage bound{}, other{};
  std::vector<OwnedDescriptor> accepted, connected;
  const auto accept = [&](int fd) { accepted.emplace_back(fd); };
  const auto listening = loop->listen_tcp(as_sockaddr(any), accept, &bound);
  auto ending = loop->listen_tcp(as_sockaddr(any), accept, &other);
  const OwnedDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(client.get(), as_sockaddr(bound), sizeof(sockaddr_in)), 0);
  ending.reset();
  EXPECT_EQ(accepted.size(), 1u);
  const OwnedDescriptor another(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(another.get(), as_sockaddr(bound), sizeof(sockaddr_in)), 0);
  ending = loop->listen_tcp(as_sockaddr(any), accept, &other);
  EXPECT_EQ(accepted.size(), 2u);
  loop->close();
}

TEST(LoopOutcomes, BehindOneThatBlocksAreLeftToOthers) {
  net::Timers timers;
  const auto loop = std::make_shared<Loop>(timers);
  const sockaddr_storage any = local_port(0);
  sockaddr_storage bound{}, other{};
  std::vector<OwnedDescriptor> accepted;
  size_t after_a_wait = 0;
  const auto accept = [&](int fd) {
    accepted.emplace_back(fd);
    if (accepted.size() > 1) return;
    Unfinished::hand_over_all();  // as a wait does
    std::thread([&] { timers.run_due(); }).join();
    after_a_wait = accepted.size();
  };
  const auto listening = loop->listen_tcp(as_sockaddr(any), accept, &bound);
  const OwnedDescriptor clients[] = {
      OwnedDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      OwnedDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  for (const auto& client : clients) {
    ASSERT_EQ(::connect(client.get(), as_sockaddr(bound), sizeof(sockaddr_in)), 0);
  }
  loop->listen_tcp(as_sockaddr(any), accept, &other);  // turns the loop
  EXPECT_EQ(after_a_wait, 2u);
  EXPECT_EQ(accepted.size(), 2u);
  loop->close();
}

TEST(LoopOutcomes, ABoundSocketIsTakenOverEvenByAClosedLoop) {
  net::Timers timers;
  const auto loop = std::make_shared<Loop>(timers);
  loop->close();
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_THROW(loop->listen_unix(fd, [](int client) { close(client); }), Error);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "the socket is still open";
}

}  // namespace
}  // namespace farspan::testing
