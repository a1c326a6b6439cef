#include <farspan/rpc/wire/frame.h>

#include <string>

namespace farspan::wire {
namespace {

Error too_much(const std::string& what, uint64_t has, uint64_t limit) {
  return Error(Code::kInvalidArgument, "the message has " + std::to_string(has) + " " + what +
                                           ", the limit is " + std::to_string(limit))
      .advice("send it in several parts");
}

}  // namespace

std::optional<Error> excess(const OutFrame& frame, const FrameLimits& limits) {
  if (frame.meta.size() > limits.max_meta_bytes) {
    return too_much("bytes beside its tensors", frame.meta.size(), limits.max_meta_bytes);
  }
  if (frame.segments.size() > limits.max_segments) {
    return too_much("tensors or parts of them", frame.segments.size(), limits.max_segments);
  }
  uint64_t payload = 0;
  for (const Buffer& segment : frame.segments) payload += padded(segment.size());
  if (payload > limits.max_payload_bytes) {
    return too_much("bytes of tensors", payload, limits.max_payload_bytes);
  }
  return std::nullopt;
}

}  // namespace farspan::wire
