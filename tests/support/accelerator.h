// The devices of the tests that run on each kind of them: simulated ones, on which tensors can be
// made, copied, added and multiplied, or the GPUs of this machine. A program is linked with one;
// its tests are skipped where there are no GPUs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>

namespace farspan::testing {

// How many there are. They are this process's accelerator from the first call of any of these on.
int accelerators();
at::Device accelerator(int number);
// That of one of many ranks, or uses: shared where there are fewer.
inline at::Device accelerator_of(int rank) { return accelerator(rank % accelerators()); }
inline c10::impl::VirtualGuardImpl accelerator_guard() {
  return c10::impl::VirtualGuardImpl(accelerator(0).type());
}
inline constexpr char kNeedsTwo[] = "needs two devices";

// In the environment of a process that is to have only these of them, in this order.
std::pair<std::string, std::string> with_accelerators(const std::vector<int>& numbers);

// What this process has of them now.
struct AcceleratorUse {
  uint64_t bytes = 0;               // of tensors, and of what moves them
  size_t opened = 0;                // memory of other processes
  size_t events = 0;                // farspan's own, and what it has opened
  std::vector<std::string> faults;  // what was done that must not be, as far as anyone notices

  bool operator==(const AcceleratorUse&) const = default;
};
inline void PrintTo(const AcceleratorUse& use, std::ostream* out) {
  *out << use.bytes << " bytes, " << use.opened << " opened, " << use.events << " events";
  for (const std::string& fault : use.faults) *out << "; " << fault;
}
AcceleratorUse accelerator_use();
// Waits until every stream is done, and all memory that tensors have let go of is released.
void settle_accelerator();

// The calling thread's current stream of the device does nothing more until then; real ones go on
// after 20 s.
void hold_up_current_stream(at::Device device, Future<void> until);

// The calling thread's current stream of a device, not the default one, captures a graph, for a
// block. Simulated ones: all streams do, until the first of the blocks ends.
class CapturedStream {
 public:
  explicit CapturedStream(at::Device device) : device_(device) { begin(device_); }
  ~CapturedStream() { end(device_); }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;

 private:
  static void begin(at::Device device);
  static void end(at::Device device);
  const at::Device device_;
};

// Whether this process can open memory of others from now on; it can at first.
void let_memory_be_opened(bool may);
// Whether farspan gets pinned memory from now on, here; it does at first.
void let_pinned_memory_be_had(bool may);
// Or what another tensor needs may be open already.
bool has_a_region_for_each_tensor();
inline constexpr char kSharesRegions[] = "tensors share what is opened";

// How often LibTorch has asked for pinned memory; absent: nobody counts it.
std::optional<uint64_t> requests_of_pinned_memory();

// What the thread allocates meanwhile is memory that other processes cannot open.
class InUnnamedMemory {
 public:
  InUnnamedMemory();
  ~InUnnamedMemory();
  InUnnamedMemory(const InUnnamedMemory&) = delete;
  InUnnamedMemory& operator=(const InUnnamedMemory&) = delete;
};

// Makes another stream of a pool current, for a block.
class OnAnotherStream {
 public:
  explicit OnAnotherStream(at::Device device)
      : guard_(device.type()),
        before_(guard_.exchangeStream(guard_.getStreamFromGlobalPool(device))) {}
  ~OnAnotherStream() { guard_.exchangeStream(before_); }
  OnAnotherStream(const OnAnotherStream&) = delete;
  OnAnotherStream& operator=(const OnAnotherStream&) = delete;

 private:
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream before_;
};

}  // namespace farspan::testing
