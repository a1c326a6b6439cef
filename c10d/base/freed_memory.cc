#include <farspan/c10d/base/freed_memory.h>

#include <malloc.h>

namespace farspan {
namespace {

constexpr int kLargestBlock = 1 << 30;  // larger ones still come from the kernel, and go back to it
constexpr int kNever = -1;

}  // namespace

bool keep_freed_memory() noexcept {
  return mallopt(M_MMAP_THRESHOLD, kLargestBlock) == 1 && mallopt(M_TRIM_THRESHOLD, kNever) == 1;
}

}  // namespace farspan
