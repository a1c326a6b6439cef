// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Streams of LibTorch's pools, which are few (CUDA: 32 of a device): who takes one may get what
// others work with already, and his work stands behind theirs. Who takes one of LibTorch itself may
// get any.
#pragma once

#include <c10/core/Stream.h>

namespace farspan {

// One that is nobody's KeptStream, while there are such.
//
// Threading: any thread.
c10::Stream pool_stream(c10::Device device);

// One that no other KeptStream has, while there are such: for work that waits for other processes,
// behind which work that they wait for must not stand.
//
// Threading: any thread.
class KeptStream {
 public:
  explicit KeptStream(c10::Device device);
  ~KeptStream();
  KeptStream(const KeptStream&) = delete;
  KeptStream& operator=(const KeptStream&) = delete;

  const c10::Stream& stream() const noexcept { return stream_; }

 private:
  const c10::Stream stream_;
};

}  // namespace farspan
