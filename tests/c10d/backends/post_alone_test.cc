// A post without a job around it: what it does when the other end is not as it should be.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <farspan/c10d/backends/cpu/post/letter.h>
#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/messages/receive.h>
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
  //   returns  where the other one finds it
  cpu::PostAddress open(const std::string& endpoint_of_other) {
    const cpu::PostAddress own = post_->listen();
    cpu::PostWorld world;
    world.rank = 0;
    world.addresses = {own, {endpoint_of_other, 1}};
    world.names = {"rank 0", "rank 1"};
    world.is_far = {false, true};
    world.stripe_bytes = ~uint64_t{0};
    world.watch = [](int) {};
    world.on_gone = [](int) {};
    world.on_failed = [](uint64_t, const cpu::Failure&) {};
    const std::string for_hosts = post_->listen_to_hosts("127.0.0.1");
    post_->open(std::move(world));
    return {for_hosts, own.token};
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

// Rank 1 by hand, on a line that it has dialled.
class OtherRank {
 public:
  explicit OtherRank(const cpu::PostAddress& address)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(
        static_cast<uint16_t>(std::stoi(address.endpoint.substr(address.endpoint.rfind(':') + 1))));
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    cpu::Letter hello;
    hello.from = 1;
    hello.offer = address.token;
    say(hello);
  }
  void say(const cpu::Letter& letter, std::span<const std::byte> rest = {}) {
    cpu::Letter whole = letter;
    whole.bytes = rest.size();
    EXPECT_EQ(::send(socket_.get(), &whole, sizeof whole, 0), ssize_t{sizeof whole});
    if (rest.empty()) return;
    EXPECT_EQ(::send(socket_.get(), rest.data(), rest.size(), 0),
              static_cast<ssize_t>(rest.size()));
  }
  static constexpr uint64_t kCount = 1000;
  void offer_announced(uint64_t number) {
    cpu::Letter offer;
    offer.kind = cpu::Letter::kOffer;
    offer.type = static_cast<uint8_t>(DType::UINT8);
    offer.is_announced = 1;
    offer.from = 1;
    offer.group = 1;
    offer.count = kCount;
    offer.offer = number;
    say(offer);
  }
  void send_number(uint64_t offer, uint64_t number) {
    cpu::Letter data;
    data.kind = cpu::Letter::kData;
    data.offer = offer;
    say(data, std::as_bytes(std::span(&number, 1)));
  }

 private:
  const net::OwnedDescriptor socket_;
};

// Who has offered it counts on the receive as soon as he has heard of it.
TEST_F(PostAlone, WhatIsAnnouncedAndFoundMayComeAfterItsDeadline) {
  const FullListener listener;
  OtherRank other(open(listener.endpoint()));
  std::vector<std::byte> elements(OtherRank::kCount);
  for (const bool comes : {true, false}) {
    const uint64_t offer = comes ? 1 : 2;
    uint64_t number = 0;
    other.offer_announced(offer);
    Message wanted = testing::message(1, 0, 1s);
    wanted.announced_by = &number;
    const TimePoint begun = Clock::now();
    const auto received =
        post_->recv(1, testing::whole_job(0, 2), wanted, testing::block_of(elements));
    EXPECT_FALSE(received.wait_for(1300ms));
    if (comes) other.send_number(offer, 42);
    ASSERT_TRUE(received.wait_for(30s));
    if (comes) {
      ASSERT_FALSE(received.has_error()) << received.error().what();
      EXPECT_EQ(received.value(), 1);
      EXPECT_EQ(number, 42u);
    } else {
      ASSERT_TRUE(received.has_error());
      EXPECT_EQ(received.error().code(), Code::kTimeout);
      EXPECT_EQ(number, messages::kNotComeInTime);
      EXPECT_GE(Clock::now() - begun, 1s + messages::kFoundGrace);
    }
  }
}

TEST_F(PostAlone, WhoAsksForWhomARankWaitsIsBackInTimeThoughItsLineNeverOpens) {
  const FullListener other;
  open(other.endpoint());
  const TimePoint begun = Clock::now();
  EXPECT_FALSE(post_->ask_waits(1, 1, Deadline::after(200ms)));
  EXPECT_LT(Clock::now() - begun, 10s);
}

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
