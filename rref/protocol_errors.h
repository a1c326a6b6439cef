// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The errors of references, in words.
#pragma once

#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/rref/id.h>
#include <farspan/rref/protocol_messages.h>

namespace farspan::rref {

// "rref 0/17@2 (std::shared_ptr<Net>)".
std::string label(const RRefId& id, const std::string& what);

Error shut_down(const std::string& operation);
// The owner is out of reach, or dead for good.
Error owner_gone(const RRefId& id, const std::string& what, const std::string& owner, bool dead);
Error peer_gone(const std::string& peer, bool dead, const std::string& operation);
Error released(const RRefId& id, const std::string& what, const std::string& owner);
Error handle_gone(const RRefId& id);
// What an owner's refusal to count a fork means for its holder.
Error refused(const RRefId& id, const std::string& what, const std::string& owner, Refusal reason);
Error taken_back(const RRefId& id, const std::string& sender);
Error corrupt(const std::string& sender, const std::string& why);

}  // namespace farspan::rref
