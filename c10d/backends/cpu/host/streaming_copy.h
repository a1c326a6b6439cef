// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// A copy that does not read its destination first, nor keep it in the caches.
#pragma once

#include <cstddef>
#include <span>

namespace farspan::dist::cpu::host {

// For results of so many bytes in all that they would push out of the caches what comes next. Other
// threads see the bytes after finish_streaming().
void streaming_copy(std::byte* to, std::span<const std::byte> from) noexcept;
void finish_streaming() noexcept;

}  // namespace farspan::dist::cpu::host
