// malloc and its kin, counted. What a program defines comes before libc's, for the libraries that
// it loads as well; free() stays libc's, since it is libc that gives the memory.
#include "bench/allocations.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
}

namespace bench {
namespace {

std::atomic<int64_t> asked{0}, asked_bytes{0};

void note(size_t bytes) noexcept {
  asked.fetch_add(1, std::memory_order_relaxed);
  asked_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace

Allocations allocations() noexcept {
  return {asked.load(std::memory_order_relaxed), asked_bytes.load(std::memory_order_relaxed)};
}

}  // namespace bench

extern "C" {

void* malloc(size_t size) {
  bench::note(size);
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) {
  bench::note(count * size);
  return __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) {
  bench::note(size);
  return __libc_realloc(old, size);
}

void* memalign(size_t alignment, size_t size) {
  bench::note(size);
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** memory, size_t alignment, size_t size) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* const got = memalign(alignment, size);
  if (got == nullptr) return ENOMEM;
  *memory = got;
  return 0;
}

}  // extern "C"
