// One transport with the loop and reactor that it needs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::testing {

using StreamPointer = std::shared_ptr<transport::Stream>;

// `make`: make_tcp_transport, say.
template <auto make>
class OneTransport : public ::testing::Test {
 protected:
  OneTransport() { reactor_.add(loop_); }
  ~OneTransport() override {
    loop_->close();
    reactor_.stop();
  }
  Future<StreamPointer> connect(const std::string& endpoint, Deadline deadline) {
    Promise<StreamPointer> promise;
    transport_->connect(endpoint, deadline, [promise](auto result) {
      if (auto* error = std::get_if<Error>(&result)) return (void)promise.set_error(*error);
      promise.set_value(std::move(std::get<0>(result)));
    });
    return promise.future();
  }

  net::Reactor reactor_;
  std::shared_ptr<net::Loop> loop_ = std::make_shared<net::Loop>(reactor_.timers());
  std::unique_ptr<transport::Transport> transport_ = make(loop_, reactor_);
};

}  // namespace farspan::testing
