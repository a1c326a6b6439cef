// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RecentSet: a set that forgets its oldest elements when it is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace farspan::optim {

// Threading: one thread at a time.
template <class T>
class RecentSet {
 public:
  explicit RecentSet(size_t most) noexcept : most_(most) {}

  // One that is there already keeps its age.
  void insert(const T& one) {
    if (!ages_.emplace(one, next_).second) return;
    by_age_.emplace(next_++, one);
    if (ages_.size() > most_) erase(T(by_age_.begin()->second));
  }
  bool contains(const T& one) const { return ages_.count(one) > 0; }
  // False when it is not there.
  bool erase(const T& one) {
    const auto found = ages_.find(one);
    if (found == ages_.end()) return false;
    by_age_.erase(found->second);
    ages_.erase(found);
    return true;
  }
  size_t size() const noexcept { return ages_.size(); }

 private:
  const size_t most_;
  uint64_t next_ = 0;
  std::map<T, uint64_t> ages_;
  std::map<uint64_t, T> by_age_;
};

}  // namespace farspan::optim
