// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ToldError: an Error as it lies in shared memory and in messages: its code, and its texts cut to
// what there is room for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan::dist::messages {

// Threading: plain data.
struct ToldError {
  uint16_t code = 0;
  std::array<char, 318> message = {};  // each ends with a zero
  std::array<char, 80> worker = {};
  std::array<char, 96> advice = {};

  static ToldError of(const Error& error) noexcept;
  Error error() const;

  // Its bytes, in a message.
  std::string text() const;
  //   throws  Error kCorrupt: there is none
  static Error from(std::span<const std::byte> bytes);
};
static_assert(sizeof(ToldError) == 496);

}  // namespace farspan::dist::messages
