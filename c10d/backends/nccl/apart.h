// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What takes its time, or for ever, and nobody may wait for.
#pragma once

#include <functional>

namespace farspan::dist::nccl {

// Runs `fn` on a thread of its own with this name. Does not block.
//   returns  false: there is no thread for it. Then it is not run, and what it holds stays
bool run_apart(const char* name, std::function<void()> fn) noexcept;

}  // namespace farspan::dist::nccl
