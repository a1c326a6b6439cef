// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LocalExports: what workers of one process export to each other: a process cannot open by name
// what is its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>

namespace farspan {

struct LocalExport {
  const void* memory = nullptr;
  size_t bytes = 0;
  device::Event written = nullptr;
  std::weak_ptr<void> held;  // keeps both
};

// Threading: every method from any thread.
class LocalExports {
 public:
  // The process's.
  static LocalExports& all();

  uint64_t add(LocalExport one);
  void remove(uint64_t id) noexcept;
  std::optional<LocalExport> find(uint64_t id) const;

 private:
  mutable Mutex mutex_;
  uint64_t last_id_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, LocalExport> all_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan
