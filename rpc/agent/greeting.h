// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Greeting: a stream during its handshake. It drives the Handshake, within a deadline and a small
// budget of bytes, and hands the stream on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <farspan/c10d/net/reactor.h>
#include <farspan/rpc/agent/handshake.h>
#include <farspan/rpc/transport/transport.h>
#include <farspan/rpc/wire/frame_reader.h>

namespace farspan::agent {

// Threading: made and started by one thread, then pumped by the reactor's. Ends exactly once.
class Greeting final : public net::Source {
 public:
  // What the stream has become.
  struct Outcome {
    std::unique_ptr<transport::Stream> stream;
    std::unique_ptr<wire::FrameReader> reader;
    std::vector<wire::InFrame> frames;  // that came right behind the handshake
    std::optional<wire::Hello> peer;
    std::optional<Error> failure;
  };
  using OnEnd = std::function<void(Outcome)>;

  Greeting(net::Reactor& reactor, std::unique_ptr<transport::Stream> stream,
           std::unique_ptr<wire::FrameReader> reader, Handshake handshake, OnEnd on_end);

  void start(Deadline deadline);
  // Ends it as if the deadline had passed. Any thread.
  void abort();

  int descriptor() const noexcept override { return descriptor_; }
  bool pump(net::Role& role) noexcept override;

 private:
  void perform(Handshake::Action action, std::vector<wire::InFrame> rest);
  void end(std::optional<wire::Hello> peer, std::optional<Error> failure,
           std::vector<wire::InFrame> rest);

  net::Reactor& reactor_;
  const int descriptor_;
  Mutex mutex_;  // between the holder of the role, which takes the stream away, and abort()
  std::unique_ptr<transport::Stream> stream_;
  std::unique_ptr<wire::FrameReader> reader_;
  Handshake handshake_;
  OnEnd on_end_;
  size_t received_ = 0;
  std::atomic<net::TimerId> timer_{0};
  std::atomic<bool> expired_{false};
};

}  // namespace farspan::agent
