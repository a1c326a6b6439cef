// A line whose other end the tests hold by hand.
#pragma once

#include <farspan/rpc/agent/connection.h>

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "rpc/agent/stranger.h"
#include "support/agents.h"
#include "support/eventually.h"

namespace farspan::testing {

inline constexpr uint64_t kConnectionLimit = 1 << 20;  // of bytes in flight

// An agent "ps" of rank 0 with an open line to rank 1, whom the tests play.
class ConnectionTest : public ::testing::Test {
 protected:
  explicit ConnectionTest(
      agent::ConnectionOptions connection = {.max_in_flight_bytes = kConnectionLimit},
      uint64_t features = 0, wire::InstanceId probed = {1, 2})
      : probed_(probed), agent_(options(connection)) {
    agent_.handle(wire::Kind::kRRefControl, agent::Messenger::Run::kInline,
                  [this](agent::Request) { ++arrived_; });
    agent_.on_worker_lost([this](int, const Error& why) {
      arrived_before_loss_ = arrived_.load();
      lost_.set_value(why);
    });
    wire::Hello hello;
    hello.name = "trainer";
    hello.rank = 1;
    hello.instance = {1, 2};
    hello.generation = "g1";
    hello.features = features;
    hello.probe = reinterpret_cast<uintptr_t>(&probed_);
    agent_.set_workers({agent_.record(), {{"trainer", 1}, hello.instance, {}}});
    stranger_ = std::make_unique<Stranger>(agent_.record().endpoints.at(0));
    stranger_->say(hello_frame(hello));
    EXPECT_TRUE(stranger_->hear()) << "no welcome";
  }
  ~ConnectionTest() override {
    stranger_.reset();
    agent_.stop();
  }

  static agent::AgentOptions options(agent::ConnectionOptions connection) {
    agent::AgentOptions options;
    options.self = {"ps", 0};
    options.generation = "g1";
    options.transports = {"unix"};
    options.connection = connection;
    return options;
  }

  Future<wire::InFrame> call(size_t bytes = 0,
                             Deadline deadline = Deadline::after(std::chrono::seconds(60))) {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = {Buffer::allocate(bytes)};
    agent_.call(1, frame, deadline, answer, false);
    return answer->future();
  }
  Route route() const {
    const auto routes = agent_.routes();
    return routes.empty() ? Route() : routes.front();
  }
  // The id of the next request that the stranger hears.
  uint64_t heard_id() { return stranger_->hear().value().header.request_id; }
  static Bytes answer_to(uint64_t id) { return to_bytes({.flags = 1, .request_id = id}); }
  static Bytes one_way() { return to_bytes({.kind = 0x23, .flags = 4}); }
  // The line ends while `continuation` of an answered call looks for the end of another call.
  template <class Continuation>
  void expect_end_beside(Continuation continuation) {
    const auto a = call(), b = call();
    auto c = a.then([=](const auto&) { return continuation(b); });
    const uint64_t first = heard_id();
    heard_id();
    stranger_->say(answer_to(first));
    stranger_.reset();
    ASSERT_TRUE(c.wait_for(std::chrono::seconds(20)));
    EXPECT_TRUE(c.value());
    EXPECT_TRUE(b.has_error());
  }

  const wire::InstanceId probed_;  // what the stranger says that it is, in its memory
  std::atomic<int> arrived_{0};    // one-way requests
  std::atomic<int> arrived_before_loss_{-1};
  Promise<Error> lost_;
  agent::Agent agent_;
  std::unique_ptr<Stranger> stranger_;
};

}  // namespace farspan::testing
