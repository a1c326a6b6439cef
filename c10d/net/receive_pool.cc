#include <farspan/c10d/net/receive_pool.h>

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

namespace farspan::net {
namespace {

constexpr size_t kSmallest = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

// Four classes to a power of two, so that at most a fifth of a block is wasted.
size_t class_of(size_t bytes) noexcept {
  if (bytes <= kSmallest) return 0;
  const int power = std::bit_width(bytes - 1) - 1;  // 2^power <= bytes - 1
  const size_t quarter = ((bytes - 1) >> (power - 2)) & 3;
  return static_cast<size_t>(power - 12) * 4 + quarter + 1;
}

size_t bytes_of(size_t size_class) noexcept {
  if (size_class == 0) return kSmallest;
  const size_t power = (size_class - 1) / 4 + 12;
  const size_t quarter = (size_class - 1) % 4 + 1;
  return (size_t{1} << power) + quarter * (size_t{1} << (power - 2));
}

void* new_block(size_t bytes) {
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : bytes >= kHugePage / 2 ? 4096 : 64;
  void* block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!block) throw std::bad_alloc();
  if (alignment == kHugePage)
    madvise(block, bytes, MADV_HUGEPAGE);  // a wish; its first touch is dear
  return block;
}

}  // namespace

std::shared_ptr<ReceivePool> ReceivePool::make(size_t max_idle_bytes) {
  return std::shared_ptr<ReceivePool>(new ReceivePool(max_idle_bytes));
}

ReceivePool::~ReceivePool() { trim(); }

Buffer ReceivePool::allocate(size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) throw std::bad_alloc();
  void* block = nullptr;
  {
    MutexLock lock(mutex_);
    Shelf& shelf = idle_[size_class];
    shelf.last_use = ++uses_;
    if (!shelf.blocks.empty()) {
      block = shelf.blocks.back();
      shelf.blocks.pop_back();
      idle_bytes_.fetch_sub(bytes_of(size_class), std::memory_order_relaxed);
    }
  }
  if (!block) block = new_block(bytes_of(size_class));
  used_bytes_.fetch_add(bytes_of(size_class), std::memory_order_relaxed);
  std::shared_ptr<void> owner(block, [pool = shared_from_this(), size_class](void* returned) {
    pool->give_back(returned, size_class);
  });
  return Buffer(static_cast<std::byte*>(block), bytes, std::move(owner));
}

void ReceivePool::give_back(void* block, size_t size_class) noexcept {
  used_bytes_.fetch_sub(bytes_of(size_class), std::memory_order_relaxed);
  std::vector<void*> dropped;  // freed outside the lock: large blocks go back to the system
  bool kept = false;
  try {
    MutexLock lock(mutex_);
    kept = keep_locked(block, size_class, dropped);
  } catch (const std::bad_alloc&) {
    kept = false;  // no memory to remember it by
  }
  if (!kept) std::free(block);
  for (void* other : dropped) std::free(other);
}

bool ReceivePool::keep_locked(void* block, size_t size_class, std::vector<void*>& dropped) {
  Shelf& shelf = idle_[size_class];
  shelf.last_use = ++uses_;
  if (shelf.blocks.size() == shelf.blocks.capacity())
    shelf.blocks.reserve(2 * shelf.blocks.size() + 1);
  if (!make_room_locked(bytes_of(size_class), dropped)) return false;
  idle_bytes_.fetch_add(bytes_of(size_class), std::memory_order_relaxed);
  shelf.blocks.push_back(block);
  return true;
}

bool ReceivePool::make_room_locked(size_t bytes, std::vector<void*>& dropped) {
  if (bytes > max_idle_bytes_) return false;
  while (idle_bytes_.load(std::memory_order_relaxed) + bytes > max_idle_bytes_) {
    Shelf* oldest = nullptr;
    for (Shelf& shelf : idle_) {
      if (!shelf.blocks.empty() && (!oldest || shelf.last_use < oldest->last_use)) oldest = &shelf;
    }
    dropped.push_back(oldest->blocks.back());
    oldest->blocks.pop_back();
    const auto size_class = static_cast<size_t>(oldest - idle_.data());
    idle_bytes_.fetch_sub(bytes_of(size_class), std::memory_order_relaxed);
  }
  return true;
}

void ReceivePool::trim() noexcept {
  std::array<Shelf, kClasses> idle;
  {
    MutexLock lock(mutex_);
    idle.swap(idle_);
    idle_bytes_.store(0, std::memory_order_relaxed);
  }
  for (const Shelf& shelf : idle) {
    for (void* block : shelf.blocks) std::free(block);
  }
}

}  // namespace farspan::net
