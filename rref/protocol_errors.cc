#include <farspan/rref/protocol_errors.h>

#include <utility>

namespace farspan::rref {

std::string label(const RRefId& id, const std::string& what) {
  return what.empty() ? to_text(id) : to_text(id) + " (" + what + ")";
}

Error shut_down(const std::string& operation) {
  return std::move(Error(Code::kShutdown, "remote references are being shut down here")
                       .operation(operation)
                       .advice("finish the use of remote references before shutdown()"));
}

Error owner_gone(const RRefId& id, const std::string& what, const std::string& owner, bool dead) {
  Error error(Code::kDisconnected, "the owner of " + label(id, what) +
                                       (dead ? " is gone for good" : " is out of reach"));
  error.worker(owner);
  error.advice(dead ? "make the value anew, on a worker that lives"
                    : "try again: the reference stays good if the owner is back within its lease");
  return error;
}

Error peer_gone(const std::string& peer, bool dead, const std::string& operation) {
  Error error(Code::kDisconnected, dead ? "it is gone for good" : "it is out of reach");
  error.worker(peer).operation(operation);
  error.advice(dead ? "use another worker" : "try again when it is back");
  return error;
}

Error released(const RRefId& id, const std::string& what, const std::string& owner) {
  return std::move(Error(Code::kNotFound, "the value of " + label(id, what) + " was released")
                       .worker(owner)
                       .advice("keep a handle to it; the handles of a worker that dies, or that is "
                               "out of reach for longer than its lease, do not keep it"));
}

Error handle_gone(const RRefId& id) {
  return Error(Code::kCancelled, "the handle to " + to_text(id) + " was dropped");
}

Error refused(const RRefId& id, const std::string& what, const std::string& owner, Refusal reason) {
  if (reason == Refusal::kReleased) return released(id, what, owner);
  return std::move(Error(Code::kNotFound, "it does not know " + label(id, what)).worker(owner));
}

Error taken_back(const RRefId& id, const std::string& sender) {
  return std::move(Error(Code::kCancelled, "the handle to " + to_text(id) +
                                               " was taken back: what carried it had failed there")
                       .worker(sender)
                       .advice("give the call that carries a reference more time"));
}

Error corrupt(const std::string& sender, const std::string& why) {
  return std::move(Error(Code::kCorrupt, why).worker(sender));
}

}  // namespace farspan::rref
