// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SharedMemory: memory that several processes of one host map. No file stands for it, so nothing is
// left of it when the last one that maps it is gone, however it went.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {

// Threading: a value; who reads and writes the bytes agrees on how.
// Lifetime:  the bytes are mapped until it is destroyed.
class SharedMemory {
 public:
  // Zeroes. Its size can never change, so no other process can make an access fail.
  //   name    what is_called() looks at
  //   throws  Error kOverloaded: no descriptors or memory left
  static SharedMemory create(size_t bytes, const std::string& name = "farspan");

  // What another process created, by a descriptor that came from it.
  //   throws  Error kCorrupt: not of this size, or its size could change; kOverloaded
  static SharedMemory open(OwnedDescriptor descriptor, size_t bytes);
  // Whether that is the descriptor of memory that was created under this name.
  static bool is_called(const std::string& name, const OwnedDescriptor& descriptor);

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
