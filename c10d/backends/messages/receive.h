// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Receive: a receive that waits for its message. Envelope: what a message is, before its bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/group/backend.h>
#include <farspan/c10d/group/dtype_info.h>

namespace farspan::dist::messages {

struct Envelope {
  int from = -1;  // rank in the group
  int tag = 0;
  DType type = {};
  uint64_t count = 0;         // elements
  bool is_announced = false;  // they are on a device: see Message::announced_by

  // That travel.
  uint64_t bytes() const noexcept {
    return is_announced ? sizeof(uint64_t) : count * size_of(type);
  }
};

// What is announced and has been found goes on for so long after its receive's deadline: who sends
// counts on it as soon as he hears of that. If it has not come by then, its number is this one.
inline constexpr std::chrono::seconds kFoundGrace{1};
inline constexpr uint64_t kNotComeInTime = ~uint64_t{0};

// Where what travels lies.
inline Block travels(const Message& message, Block data) noexcept {
  if (!message.announced_by) return data;
  return {reinterpret_cast<std::byte*>(message.announced_by), data.count};
}

// "3 elements of float32", "3 elements of float32 on a device".
std::string describe(uint64_t count, DType type, bool on_device);

// What a send and a receive end with when their time is over.
//   receiver, sender  as "rank 1 (host:pid)", or "any rank"
Error not_taken_error(const std::string& receiver, int tag);
Error not_come_error(const std::string& sender, int tag);

// The future of who asked. Its value is the rank in the group that the message came from.
//
// Threading: as FutureState; the rest is constant.
class Receive : public detail::FutureState<int> {
 public:
  Receive(const Message& message, Block data) : wanted(message), place(travels(message, data)) {}

  const Message wanted;
  const Block place;
  const TimePoint posted = Clock::now();

  bool fits(const Envelope& envelope) const noexcept {
    return envelope.tag == wanted.tag && (wanted.peer < 0 || wanted.peer == envelope.from);
  }
  // Whether a message that fits can be taken: it has the type and the size.
  bool takes(const Envelope& envelope) const noexcept {
    return envelope.type == wanted.type && envelope.count == place.count &&
           envelope.is_announced == (wanted.announced_by != nullptr);
  }
  uint64_t bytes() const noexcept {  // that are written
    return wanted.announced_by ? sizeof(uint64_t) : place.count * size_of(wanted.type);
  }
  // Why one cannot.
  //   sender, receiver  as "rank 1 (host:pid)"
  Error refusal(const Envelope& envelope, const std::string& sender,
                const std::string& receiver) const;
};

}  // namespace farspan::dist::messages
