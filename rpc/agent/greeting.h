// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Greeting: a stream during its handshake. It drives the Handshake, within a deadline and small
// limits, and hands the stream on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>
#include <farspan/rpc/agent/handshake.h>
#include <farspan/rpc/agent/outbox.h>
#include <farspan/rpc/wire/frame_reader.h>

namespace farspan::agent {

// Of the first frame, which comes from somebody who is not known yet: all that a stranger can make
// this worker hold.
inline constexpr wire::FrameLimits kGreetingLimits{
    .max_meta_bytes = 4u << 20, .max_segments = 0, .max_payload_bytes = 0};

// Threading: made and started by one thread, then pumped by the reactor's. Ends exactly once.
class Greeting final : public net::Source {
 public:
  // What the stream has become.
  struct Outcome {
    std::unique_ptr<transport::Stream> stream;
    std::unique_ptr<wire::FrameReader> reader;
    std::vector<wire::InFrame> frames;  // that came right behind the handshake
    std::vector<Buffer> unsent;         // of the handshake's last frame
    std::optional<wire::Hello> peer;
    std::optional<Error> failure;
  };
  using OnEnd = std::function<void(Outcome)>;

  //   reader  whose limits for the first frame are kGreetingLimits
  Greeting(net::Reactor& reactor, std::unique_ptr<transport::Stream> stream,
           std::unique_ptr<wire::FrameReader> reader, Handshake handshake, OnEnd on_end);

  void start(Deadline deadline);
  // Ends it as if the deadline had passed. Any thread.
  void abort();

  int descriptor() const noexcept override { return descriptor_; }
  int write_descriptor() const noexcept override { return write_descriptor_; }
  bool expect_input() noexcept override;
  bool expect_room() noexcept override;
  bool pump(net::Role& role) noexcept override;
  bool flush() noexcept override { return outbox_.flush() == Outbox::State::kLeft; }

 private:
  Outbox::State send(const Handshake::Action::Send& message);
  void perform(Handshake::Action action);
  void end(std::optional<wire::Hello> peer, std::optional<Error> failure,
           std::vector<wire::InFrame> rest);

  net::Reactor& reactor_;
  const int descriptor_, write_descriptor_;
  Mutex mutex_;  // between the holder of the role, which takes the stream away, and abort()
  std::unique_ptr<transport::Stream> stream_;
  std::unique_ptr<wire::FrameReader> reader_;
  Handshake handshake_;
  OnEnd on_end_;
  Outbox outbox_;
  std::atomic<net::TimerId> timer_{0};
  std::atomic<bool> expired_{false};
};

}  // namespace farspan::agent
