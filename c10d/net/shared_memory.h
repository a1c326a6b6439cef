// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SharedMemory: memory that several processes of one host map. It has no name, so nothing is left
// of it when the last one that maps it is gone, however it went.
#pragma once

#include <cstddef>
#include <span>

#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {

// Threading: a value; who reads and writes the bytes agrees on how.
// Lifetime:  the bytes are mapped until it is destroyed.
class SharedMemory {
 public:
  // Zeroes. Its size can never change, so no other process can make an access fail.
  //   throws  Error kOverloaded: no descriptors or memory left
  static SharedMemory create(size_t bytes);

  // What another process created, by a descriptor that came from it.
  //   throws  Error kCorrupt: not of this size, or its size could change; kOverloaded
  static SharedMemory open(OwnedDescriptor descriptor, size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const noexcept { return bytes_.data(); }
  size_t size() const noexcept { return bytes_.size(); }
  int descriptor() const noexcept { return descriptor_.get(); }
  // Once everybody has it who should; what is mapped stays so.
  void close_descriptor() noexcept { descriptor_.reset(); }

 private:
  SharedMemory(OwnedDescriptor descriptor, size_t bytes);

  OwnedDescriptor descriptor_;
  std::span<std::byte> bytes_;
};

}  // namespace farspan::net
