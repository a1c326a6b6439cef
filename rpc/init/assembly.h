// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Assembly: what workers tell each other while they join.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/store/store.h>

namespace farspan {

// All ranks go through the same steps. Who cannot go on says why where the others wait for him, so
// that they end at once, and say it, too.
//
// Threading: one thread.
// Lifetime:  the store outlives it.
class Assembly {
 public:
  enum class Step { kHosts, kWorkers, kReady };  // in this order

  // Over keys that nobody else uses (PrefixStore).
  Assembly(dist::Store& store, int rank, int world_size, Deadline deadline);

  // Puts down this rank's value, and waits for everybody's.
  //   throws  Error kUnavailable: another rank has refused; kCorrupt: one is of another version;
  //           else what the store throws
  std::vector<std::string> exchange(Step step, const std::string& value);

  // This rank takes no more steps. Does nothing after an exchange() that has thrown. Who refuses,
  // or hears of it, waits until all have, for some seconds at most: the store may be hosted here.
  void refuse(const std::string& name, const Error& why) noexcept;

 private:
  static std::string key_of(std::string_view step, int rank);
  std::vector<std::string> keys_of(std::string_view step) const;
  void leave(const std::string& refusal) noexcept;

  dist::Store& store_;
  const int rank_, world_size_;
  const Deadline deadline_;
  size_t steps_done_ = 0;
  bool is_over_ = false;
};

}  // namespace farspan
