// Agents of one process, connected over a transport of the test's choice.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/rpc/agent/agent.h>

namespace farspan::testing {

// An answer, as a future.
class Answer final : public agent::ReplyHandler {
 public:
  void on_reply(wire::InFrame&& reply) noexcept override {
    reply.failed() ? promise_.set_error(wire::decode_error(reply.meta.span()))
                   : promise_.set_value(std::move(reply));
  }
  void on_error(const Error& why) noexcept override { promise_.set_error(why); }
  Future<wire::InFrame> future() const { return promise_.future(); }

 private:
  Promise<wire::InFrame> promise_;
};

struct AgentsOptions {
  int count = 2;
  std::string transport = "loopback";
  int threads = 0;
  int max_threads = 256;
  uint64_t max_in_flight_bytes = uint64_t{256} << 20;
  uint64_t max_payload_bytes = wire::FrameLimits().max_payload_bytes;  // that they accept
};

class Agents {
 public:
  explicit Agents(AgentsOptions options = {}) {
    for (int rank = 0; rank < options.count; ++rank) {
      agent::AgentOptions one;
      one.self = {"w" + std::to_string(rank), rank};
      one.generation = "test";
      one.transports = {options.transport};
      one.reactor.threads = options.threads;
      one.reactor.max_threads = options.max_threads;
      one.connection.max_in_flight_bytes = options.max_in_flight_bytes;
      one.frame_limits.max_payload_bytes = options.max_payload_bytes;
      agents_.push_back(std::make_unique<agent::Agent>(one));
    }
    std::vector<agent::PeerRecord> records;
    for (const auto& agent : agents_) records.push_back(agent->record());
    for (const auto& agent : agents_) agent->set_workers(records);
  }
  ~Agents() {
    for (const auto& agent : agents_) agent->stop();
  }

  agent::Agent& operator[](int rank) { return *agents_.at(static_cast<size_t>(rank)); }

  // Sends a request of kind kCall with these bytes.
  Future<wire::InFrame> call(int from, int to, std::span<const std::byte> meta,
                             std::vector<Buffer> segments = {},
                             Deadline deadline = Deadline::after(std::chrono::seconds(30))) {
    auto answer = std::make_shared<Answer>();
    auto future = answer->future();
    wire::OutFrame frame;
    frame.header.chain = net::current_chain();
    frame.meta = meta;
    frame.segments = std::move(segments);
    (*this)[from].call(to, frame, deadline, std::move(answer), false);
    return future;
  }

  // As call(), and waits the way rpc_sync does.
  wire::InFrame call_sync(int from, int to, std::span<const std::byte> meta,
                          std::vector<Buffer> segments = {},
                          Deadline deadline = Deadline::after(std::chrono::seconds(30))) {
    auto future = call(from, to, meta, std::move(segments), deadline);
    (*this)[from].wait(*future.state(), Deadline::never(), to);
    return future.value();
  }

 private:
  std::vector<std::unique_ptr<agent::Agent>> agents_;
};

// `words` of 8 bytes, each holding `value`.
inline Buffer words(size_t count, uint64_t value) {
  Buffer buffer = Buffer::allocate(8 * count);
  for (size_t i = 0; i < count; ++i) std::memcpy(buffer.data() + 8 * i, &value, 8);
  return buffer;
}
inline uint64_t word_at(const Buffer& buffer, size_t index) {
  uint64_t value = 0;
  std::memcpy(&value, buffer.data() + 8 * index, 8);
  return value;
}

}  // namespace farspan::testing
