// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Trace: when a stage of a pipeline computes, forward and backward.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "console/timeline.h"

// Threading: every method from any thread.
class Trace {
 public:
  explicit Trace(std::string worker);

  // Runs `compute`, one call at a time, and writes down when. Does the same, later, for the
  // backward pass through the graph that leads to the tensor which it returns.
  //   label  says which micro-batch that is
  at::Tensor forward(const std::string& label, const std::function<at::Tensor()>& compute);

  // All so far, in the order of their ends.
  std::vector<console::Span> spans() const;

 private:
  struct Log;
  class Begin;
  class End;

  const std::shared_ptr<Log> log_;  // hooks in graphs own it as well
};
