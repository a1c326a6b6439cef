#include <farspan/rpc/agent/messenger.h>

#include <string>
#include <utility>

namespace farspan::agent {

CallContext& current_call() noexcept {
  thread_local CallContext context;
  return context;
}

Error Messenger::given_up() { return Error(Code::kCancelled, "its caller has given it up"); }

Request::~Request() {
  if (!route_ || one_way()) return;
  try {
    fail(Error(Code::kCancelled, "the request was dropped without an answer"));
  } catch (const Error&) {
    // The connection is gone, and with it the caller's wait.
  }
}

void Request::reply(std::span<const std::byte> meta, std::vector<Buffer> segments,
                    std::shared_ptr<wire::Lent> lent) {
  wire::OutFrame frame;
  frame.header.flags = wire::kReply;
  frame.meta = meta;
  frame.segments = std::move(segments);
  frame.lent = std::move(lent);
  answer(frame);
}

void Request::fail(const Error& error) {
  const Buffer meta = wire::encode(error);
  wire::OutFrame frame;
  frame.header.flags = wire::kReply | wire::kFailed;
  frame.meta = meta.span();
  answer(frame);
}

void Request::answer(wire::OutFrame& frame) {
  const auto route = std::exchange(route_, nullptr);
  if (!route || one_way()) return;
  frame.header.kind = frame_.header.kind;
  frame.header.request_id = frame_.header.request_id;
  frame.header.chain = frame_.header.chain;
  route->send_reply(frame);
}

std::string Messenger::worker_name(int rank) const {
  const auto at = static_cast<size_t>(rank);
  return at < workers().size() ? workers()[at].name : "rank " + std::to_string(rank);
}

}  // namespace farspan::agent
