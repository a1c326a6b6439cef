#include <farspan/c10d/backends/messages/receive.h>

namespace farspan::dist::messages {

std::string describe(uint64_t count, DType type) {
  return std::to_string(count) + (count == 1 ? " element of " : " elements of ") +
         std::string(name_of(type));
}

std::optional<Error> Receive::mismatch(const Envelope& envelope) const {
  if (envelope.type == wanted.type && envelope.count == place.count) return std::nullopt;
  return Error(Code::kShapeMismatch, "rank " + std::to_string(envelope.from) + " sent " +
                                         describe(envelope.count, envelope.type) +
                                         ", and the receive is for " +
                                         describe(place.count, wanted.type))
      .worker("rank " + std::to_string(envelope.from))
      .advice("make both ends agree; a value's size can be sent before it");
}

std::string Receive::awaited() const {
  return wanted.peer < 0 ? "any rank" : "rank " + std::to_string(wanted.peer);
}

}  // namespace farspan::dist::messages
