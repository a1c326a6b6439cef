// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// HostCopy: a tensor of a device in the processor's memory, for what works there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

#include <farspan/c10d/base/time.h>

namespace farspan {

// Copies are made by a stream of a pool, from memory and to memory that is pinned, so that nobody
// waits for them but who needs them.
//
// Threading: one thread at a time.
class HostCopy {
 public:
  // Contiguous, of the same shape and dtype.
  //   read    filled with what the calling thread's current stream has given the tensor by now
  //   grads   not recorded
  HostCopy(const at::Tensor& tensor, bool read);

  const at::Tensor& tensor() const noexcept { return host_; }
  // Until it is filled; at once, unless `read`.
  //   throws  Error kTimeout: the device was not done in time
  void wait(Deadline deadline) const;
  // The tensor gets what is here, which must not change any more. The calling thread's current
  // stream waits for that.
  void write_back(const at::Tensor& to) const;

 private:
  at::Tensor host_;
  c10::Stream stream_;
  std::optional<c10::Event> filled_;
};

}  // namespace farspan
