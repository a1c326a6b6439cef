// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// OwnedDescriptor: a file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace farspan::net {

// Threading: belongs to one thread at a time.
class OwnedDescriptor {
 public:
  OwnedDescriptor() noexcept = default;
  explicit OwnedDescriptor(int fd) noexcept : fd_(fd) {}  // -1: none
  ~OwnedDescriptor() { reset(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(other.release()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  // Gives it up without closing it.
  int release() noexcept { return std::exchange(fd_, -1); }
  // Closes it; errno stays as it was.
  void reset() noexcept;

 private:
  int fd_ = -1;
};

}  // namespace farspan::net
