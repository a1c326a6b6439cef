// A post without a job around it: what it does when the other end is not as it should be.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/net/owned_descriptor.h>

#include "c10d/backends/cpu_job.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;

// Rank 0 of two. The other one is on another host, at an endpoint.
class PostAlone : public ::testing::Test {
 protected:
  PostAlone()
      : reactor_(std::make_shared<net::Reactor>(net::ReactorOptions{.threads = 2})),
        loop_(std::make_shared<net::Loop>(reactor_->timers())),
        post_(std::make_shared<cpu::Post>(reactor_, loop_)) {
    reactor_->add(loop_);
  }
  ~PostAlone() override {
    post_->stop(0ms);
    loop_->close();
    reactor_->stop();
  }
  void open(const std::string& endpoint_of_other) {
    cpu::PostWorld world;
    world.rank = 0;
    world.addresses = {post_->listen(), {endpoint_of_other, 1}};
    world.names = {"rank 0", "rank 1"};
    world.is_far = {false, true};
    world.stripe_bytes = ~uint64_t{0};
    world.watch = [](int) {};
    world.on_gone = [](int) {};
    world.on_failed = [](uint64_t, const cpu::Failure&) {};
    post_->open(std::move(world));
  }

  const std::shared_ptr<net::Reactor> reactor_;
  const std::shared_ptr<net::Loop> loop_;
  const std::shared_ptr<cpu::Post> post_;
};

// Listens, and accepts nobody: who connects waits.
class FullListener {
 public:
  FullListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), address(), sizeof address_), 0);
    EXPECT_EQ(listen(socket_.get(), 0), 0);
    socklen_t size = sizeof address_;
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address_), &size);
    for (net::OwnedDescriptor& one : waiting_) {
      one = net::OwnedDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      connect(one.get(), address(), sizeof address_);
    }
  }
  std::string endpoint() const {
    return "tcp:127.0.0.1:" + std::to_string(ntohs(address_.sin_port));
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  const net::OwnedDescriptor socket_;
  sockaddr_in address_{};
  std::array<net::OwnedDescriptor, 16> waiting_;
};

TEST_F(PostAlone, WhoWaitsForAMessageRunsOutOfTimeThoughItsLineNeverOpens) {
  const FullListener other;
  open(other.endpoint());
  std::vector<std::byte> bytes(1 << 20);
  const auto sent = post_->send(1, testing::whole_job(0, 2), testing::message(1, 0, 200ms),
                                testing::block_of(bytes));
  ASSERT_TRUE(sent.wait_for(30s));
  ASSERT_TRUE(sent.has_error());
  EXPECT_EQ(sent.error().code(), Code::kTimeout) << sent.error().what();
}

}  // namespace
}  // namespace farspan::dist
