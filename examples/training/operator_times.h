// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// OperatorTimes: how much of its processor time this process spends in LibTorch's operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/values/codec_map.h>
#include <farspan/c10d/values/codec_struct.h>

namespace training {

// Seconds of processor time, user and system. Travels, and adds up over processes.
struct Profile {
  double busy = 0;                          // of all threads
  std::map<std::string, double> operators;  // of it: "convolution_backward", what it calls included

  // What all operators have of the busy time, 0 to 1; and the `count` largest, by their names.
  double share() const;
  std::vector<std::pair<std::string, double>> largest(size_t count) const;
  Profile& operator+=(const Profile& other);
};
FARSPAN_STRUCT(Profile, busy, operators);

// Counts while it lives, in all threads: in forward and backward passes and in optimizers' steps.
// Who calls an operator is in that one until it returns. All else, waiting by polling included, is
// busy time outside of them.
//
// Costs two readings of the thread's clock for each operator that no other calls, about 2 us: 0.3 %
// of a step on 32 images.
// OpenMP's threads count as busy only; after at::set_num_threads(1) there are none.
// Threading: any thread. One at a time: a second one throws std::logic_error.
// Lifetime:  ends before main() does, for LibTorch's list of callbacks goes when the program exits.
class OperatorTimes {
 public:
  OperatorTimes();
  ~OperatorTimes();
  OperatorTimes(const OperatorTimes&) = delete;
  OperatorTimes& operator=(const OperatorTimes&) = delete;

  Profile so_far() const;

 private:
  double begun_;
  uint64_t callback_;
};

}  // namespace training
