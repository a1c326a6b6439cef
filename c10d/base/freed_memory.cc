#include <farspan/c10d/base/freed_memory.h>

#include <malloc.h>

namespace farspan {
namespace {

// The same numbers in tests/bench/peers/gloo_ddp.py.
constexpr int kLargestBlock = 1 << 30;  // larger ones still come from the kernel, and go back to it
constexpr int kLargestBefore235 = 32 << 20;  // what glibc took until then
constexpr int kNever = -1;

}  // namespace

bool keep_freed_memory() noexcept {
  const bool keeps_blocks = mallopt(M_MMAP_THRESHOLD, kLargestBlock) == 1 ||
                            mallopt(M_MMAP_THRESHOLD, kLargestBefore235) == 1;
  const bool keeps_the_end = mallopt(M_TRIM_THRESHOLD, kNever) == 1;
  // Other arenas lie in heaps of 64 MiB, each of which goes back to the kernel when it is empty.
  const bool has_one_arena = mallopt(M_ARENA_MAX, 1) == 1;
  return keeps_blocks && keeps_the_end && has_one_arena;
}

}  // namespace farspan
