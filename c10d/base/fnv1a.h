// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Fnv1a: a hash of 64 bits, the same in every process; for what nobody forges.
#pragma once

#include <cstdint>
#include <string_view>

namespace farspan {

// Threading: a value.
class Fnv1a {
 public:
  // One step, whatever the number's size.
  constexpr Fnv1a& add(uint64_t number) noexcept {
    hash_ = (hash_ ^ number) * 0x100000001b3;
    return *this;
  }
  // One step for each byte.
  constexpr Fnv1a& add_text(std::string_view text) noexcept {
    for (const char byte : text) add(static_cast<unsigned char>(byte));
    return *this;
  }
  constexpr uint64_t value() const noexcept { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace farspan
