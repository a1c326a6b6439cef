// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// HostName: what names of memory that processes share hold, and how another process of this host
// opens what they stand for.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/shared_memory.h>

namespace farspan::device {

// Threading: a value.
struct HostName {
  using Bytes = std::array<std::byte, 64>;

  pid_t process;
  int32_t descriptor;
  uint64_t instance;  // of the devices that it is of
  uint64_t id;        // among theirs
  uint64_t bytes;
  // Of a simulated device's memory: the device's number on the machine, and where it lies there.
  int32_t device = 0;
  uint64_t base = 0;

  Bytes to_bytes() const noexcept {
    static_assert(sizeof(HostName) <= sizeof(Bytes));
    Bytes all{};
    std::memcpy(all.data(), this, sizeof *this);
    return all;
  }
  //   what      "memory" or "event"
  //   instance  of the devices that are to open it
  //   throws    Error kInvalidArgument: it is their own
  static HostName from(const Bytes& all, const std::string& what, uint64_t instance) {
    HostName name;
    std::memcpy(&name, all.data(), sizeof name);
    if (name.instance != instance) return name;
    throw Error(Code::kInvalidArgument, "a process cannot open " + what + " of its own");
  }

  // That of the file.
  static std::string file(const std::string& what, uint64_t instance, uint64_t id) {
    return "farspan." + what + "." + std::to_string(instance) + "." + std::to_string(id);
  }
  //   throws  Error kUnavailable: it is no more, or not to be opened here
  net::SharedMemory open(const std::string& what) const {
    const std::string path =
        "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
    net::OwnedDescriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!opened || !net::SharedMemory::is_called(file(what, instance, id), opened)) {
      throw Error(Code::kUnavailable, "that " + what + " is no more, or cannot be opened here");
    }
    return net::SharedMemory::open(std::move(opened), bytes);
  }
};

}  // namespace farspan::device
