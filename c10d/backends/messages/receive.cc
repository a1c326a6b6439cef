#include <farspan/c10d/backends/messages/receive.h>

namespace farspan::dist::messages {

std::string describe(uint64_t count, DType type, bool on_device) {
  return std::to_string(count) + (count == 1 ? " element of " : " elements of ") +
         std::string(name_of(type)) + (on_device ? " on a device" : "");
}

Error not_taken_error(const std::string& receiver, int tag) {
  return Error(Code::kTimeout, "the message was not taken in time")
      .worker(receiver)
      .advice("look whether " + receiver + " calls recv() for tag " + std::to_string(tag));
}

Error not_come_error(const std::string& sender, int tag) {
  return Error(Code::kTimeout, "nothing came from " + sender)
      .worker(sender)
      .advice("look whether it calls send() with tag " + std::to_string(tag));
}

Error Receive::refusal(const Envelope& envelope, const std::string& sender,
                       const std::string& receiver) const {
  const bool on_device = wanted.announced_by != nullptr;
  const std::string sent = describe(envelope.count, envelope.type, envelope.is_announced);
  std::string expected = describe(place.count, wanted.type, on_device);
  if (envelope.is_announced && !on_device) expected += " in the processor's memory";
  return Error(Code::kShapeMismatch, sender + " sent " + sent + ", and the receive of " + receiver +
                                         " is for " + expected)
      .worker(sender)
      .advice("make both ends agree; a value's size can be sent before it");
}

}  // namespace farspan::dist::messages
