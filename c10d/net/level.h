// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Level: an eventfd that says yes or no to poll(2), in either direction. Another process may have a
// descriptor of the same one.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {

// Threading: every method from any thread.
class Level {
 public:
  // Not readable, and writable.
  //   throws  Error kOverloaded: no descriptors
  Level() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_) return;
    throw Error(Code::kOverloaded, std::string("eventfd: ") + std::strerror(errno))
        .advice("raise the limit of open files (ulimit -n)");
  }
  // One that another process has made.
  explicit Level(OwnedDescriptor descriptor) noexcept : descriptor_(std::move(descriptor)) {}

  int descriptor() const noexcept { return descriptor_.get(); }

  void make_readable() noexcept { set(1); }
  void make_unwritable() noexcept { set(kFull); }
  // Neither readable nor full.
  void clear() noexcept {
    uint64_t count = 0;
    if (read(descriptor_.get(), &count, sizeof count) < 0) return;  // it was so already
  }

 private:
  static constexpr uint64_t kFull = ~uint64_t{0} - 1;  // an eventfd's largest count
  void set(uint64_t count) noexcept {
    clear();
    if (write(descriptor_.get(), &count, sizeof count) < 0) return;  // another thread has set it
  }

  OwnedDescriptor descriptor_;
};

}  // namespace farspan::net
