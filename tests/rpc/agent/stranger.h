// Somebody who speaks the wire by hand, at the other end of an agent's line.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/tcp/tcp_transport.h>
#include <farspan/c10d/transport/unix/unix_transport.h>
#include <farspan/rpc/wire/messages.h>

#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {

inline Bytes bytes_of(const Buffer& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

inline RawFrame hello_frame(const wire::Hello& hello, uint8_t kind = 1) {
  return {.kind = kind, .request_id = 0, .meta = bytes_of(wire::encode(hello))};
}

// What a worker of the tests' job says of itself.
inline wire::Hello hello_of(int rank) {
  wire::Hello hello;
  hello.name = "w" + std::to_string(rank);
  hello.rank = rank;
  hello.instance = {5, static_cast<uint64_t>(rank)};
  hello.generation = "g1";
  return hello;
}

// A line to an agent that is written and read by hand.
class Stranger {
 public:
  explicit Stranger(const std::string& endpoint) {
    reactor_.add(loop_);
    if (endpoint.starts_with("tcp:")) transport_ = transport::make_tcp_transport(loop_, reactor_);
    Promise<std::shared_ptr<transport::Stream>> connected;
    transport_->connect(endpoint, Deadline::after(std::chrono::seconds(20)),
                        [connected](auto result) {
                          if (auto* error = std::get_if<Error>(&result))
                            return (void)connected.set_error(*error);
                          connected.set_value(std::move(std::get<0>(result)));
                        });
    stream_ = connected.future().wait(Millis(20'000));
  }
  // At the end of a stream that was accepted by hand.
  explicit Stranger(std::shared_ptr<transport::Stream> stream) : stream_(std::move(stream)) {}
  ~Stranger() {
    loop_->close();
    reactor_.remove(*loop_);
    reactor_.stop();
  }

  void say(const Bytes& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      iovec piece{const_cast<std::byte*>(bytes.data() + done), bytes.size() - done};
      const auto result = stream_->write(&piece, 1);
      if (result.status == transport::IoStatus::kOk) {
        done += result.bytes;
      } else if (result.status == transport::IoStatus::kWouldBlock) {
        if (!stream_->expect_room()) continue;
        pollfd room{stream_->write_descriptor(), POLLOUT, 0};
        ASSERT_EQ(poll(&room, 1, 20'000), 1) << "nobody reads";
      } else {
        return;  // the agent has hung up: seen by who listens
      }
    }
  }
  void say(const RawFrame& frame) { say(to_bytes(frame)); }

  // The next frame; none when the agent has hung up.
  std::optional<wire::InFrame> hear() {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (heard_ == reading_.frames().size()) {
      Bytes buffer(65'536);
      iovec place{buffer.data(), buffer.size()};
      const auto result = stream_->read(&place, 1);
      if (result.status == transport::IoStatus::kOk) {
        reading_.feed(std::span(buffer).first(result.bytes));
      } else if (result.status == transport::IoStatus::kWouldBlock) {
        if (!stream_->expect_input()) continue;
        pollfd more{stream_->read_descriptor(), POLLIN, 0};
        if (poll(&more, 1, deadline.poll_ms()) != 1) throw Error(Code::kTimeout, "silence");
      } else {
        return std::nullopt;
      }
    }
    return reading_.frames()[heard_++];
  }

  void hang_up() { stream_->shut(); }
  // What the agent writes from now on fails, though it may still read: over a unix socket.
  void stop_hearing() { shutdown(stream_->read_descriptor(), SHUT_RD); }

  // Reads up to so many bytes, whatever they are; after that nothing can be heard any more.
  void swallow(size_t most) {
    Bytes buffer(most);
    for (size_t done = 0; done < most;) {
      iovec place{buffer.data(), most - done};
      const auto result = stream_->read(&place, 1);
      if (result.status != transport::IoStatus::kOk) return;
      done += result.bytes;
    }
  }

 private:
  net::Reactor reactor_;
  std::shared_ptr<net::Loop> loop_ = std::make_shared<net::Loop>(reactor_.timers());
  std::unique_ptr<transport::Transport> transport_ =
      transport::make_unix_transport(loop_, reactor_);
  std::shared_ptr<transport::Stream> stream_;
  Reading reading_;
  size_t heard_ = 0;
};

}  // namespace farspan::testing
