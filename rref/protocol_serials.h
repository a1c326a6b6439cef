// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SerialSet: which of the numbers 1, 2, 3, ... have been seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>

namespace farspan::rref {

// Takes the memory of its gaps: as long as every number comes in the end, and few are late, next to
// nothing.
//
// Threading: the caller serialises.
class SerialSet {
 public:
  // False when it was there.
  bool insert(uint64_t serial) {
    if (serial <= floor_) return false;
    if (serial > floor_ + 1) return above_.insert(serial).second;
    ++floor_;
    while (!above_.empty() && *above_.begin() == floor_ + 1) {
      above_.erase(above_.begin());
      ++floor_;
    }
    return true;
  }
  bool contains(uint64_t serial) const { return serial <= floor_ || above_.contains(serial); }

  size_t gaps_held() const noexcept { return above_.size(); }

 private:
  uint64_t floor_ = 0;  // all up to it are in
  std::set<uint64_t> above_;
};

}  // namespace farspan::rref
