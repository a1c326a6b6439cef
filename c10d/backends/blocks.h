// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What backends do with blocks, wherever their bytes go.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist {

//   element  size of one, in bytes
inline std::span<std::byte> bytes_of(Block block, size_t element) noexcept {
  return {block.data, block.count * element};
}

// One rank's own part does not travel. The two may be the same memory, or overlap.
inline void copy_own(Block from, Block to, size_t element) noexcept {
  if (from.count > 0 && from.data != to.data) {
    std::memmove(to.data, from.data, from.count * element);
  }
}

// One after the other, whole cache lines each; the last has what is left.
inline std::vector<Block> split(Block block, size_t parts, size_t element) {
  const size_t line = std::max<size_t>(1, 64 / element);
  const size_t share = (block.count / parts + line - 1) / line * line;
  std::vector<Block> all;
  for (size_t i = 0, begin = 0; i < parts; ++i) {
    const size_t left = block.count - begin;
    all.push_back({block.data + begin * element, i + 1 == parts ? left : std::min(left, share)});
    begin += all.back().count;
  }
  return all;
}

}  // namespace farspan::dist
