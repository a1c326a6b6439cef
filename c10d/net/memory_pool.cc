#include <farspan/c10d/net/memory_pool.h>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
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

// Small blocks come from malloc, which may keep what it is given back; large ones straight from the
// system.
class Heap final : public BlockMemory {
 public:
  void* make(size_t bytes) override {
    if (bytes >= kLarge) return map(bytes);
    void* const block =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (!block) throw std::bad_alloc();
    return block;
  }
  void free(void* block, size_t bytes) noexcept override {
    bytes >= kLarge ? static_cast<void>(munmap(block, bytes)) : std::free(block);
  }

 private:
  static constexpr size_t kLarge = kHugePage / 2, kAlignment = 64;

  static void* map(size_t bytes) {
    const size_t more = bytes >= 2 * kHugePage ? kHugePage : 0;
    void* const all =
        mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    if (more == 0) return all;
    auto* const begin = static_cast<std::byte*>(all);
    const size_t before = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
    if (before > 0) munmap(begin, before);
    munmap(begin + before + bytes, more - before);
    madvise(begin + before, bytes, MADV_HUGEPAGE);  // a wish; its first touch is dear
    return begin + before;
  }
};

}  // namespace

std::shared_ptr<MemoryPool> MemoryPool::make(MemoryPoolOptions options,
                                             std::shared_ptr<BlockMemory> memory) {
  if (!memory) memory = std::make_shared<Heap>();
  return std::shared_ptr<MemoryPool>(new MemoryPool(options, std::move(memory)));
}

MemoryPool::~MemoryPool() { trim(); }

Buffer MemoryPool::allocate(size_t bytes) {
  const size_t size_class = class_of(bytes);
  if (size_class >= kClasses) throw std::bad_alloc();
  void* block = nullptr;
  {
    MutexLock lock(mutex_);
    Shelf& shelf = idle_[size_class];
    shelf.last_use = ++uses_;
    if (!shelf.blocks.empty()) {
      block = shelf.blocks.back().block;
      shelf.blocks.pop_back();
      idle_bytes_.fetch_sub(bytes_of(size_class), std::memory_order_relaxed);
    }
  }
  (block ? reused_ : made_).fetch_add(1, std::memory_order_relaxed);
  if (!block) block = memory_->make(bytes_of(size_class));
  used_bytes_.fetch_add(bytes_of(size_class), std::memory_order_relaxed);
  std::shared_ptr<void> owner(block, [pool = shared_from_this(), size_class](void* returned) {
    pool->give_back({returned, size_class});
  });
  return Buffer(static_cast<std::byte*>(block), bytes, std::move(owner));
}

void MemoryPool::free(Block block) noexcept {
  memory_->free(block.place, bytes_of(block.size_class));
}

void MemoryPool::give_back(Block block) noexcept {
  used_bytes_.fetch_sub(bytes_of(block.size_class), std::memory_order_relaxed);
  std::vector<Block> dropped;  // freed outside the lock: large blocks go back to the system
  bool kept = false;
  try {
    MutexLock lock(mutex_);
    kept = !closed_ && memory_->may_keep(block.place) && keep_locked(block, dropped);
  } catch (const std::bad_alloc&) {
    kept = false;  // no memory to remember it by
  }
  if (!kept) free(block);
  for (const Block& other : dropped) free(other);
}

bool MemoryPool::keep_locked(Block block, std::vector<Block>& dropped) {
  Shelf& shelf = idle_[block.size_class];
  shelf.last_use = ++uses_;
  if (shelf.blocks.size() == shelf.blocks.capacity())
    shelf.blocks.reserve(2 * shelf.blocks.size() + 1);
  if (!make_room_locked(bytes_of(block.size_class), dropped)) return false;
  const TimePoint now = Clock::now();
  if (!will_look_) look_later_locked(now);
  idle_bytes_.fetch_add(bytes_of(block.size_class), std::memory_order_relaxed);
  shelf.blocks.push_back({block.place, now});
  return true;
}

void MemoryPool::look_later_locked(TimePoint idle_since) {
  if (!timers_) return;
  timers_->add(idle_since + options_.keep, [weak = weak_from_this()] {
    if (const auto pool = weak.lock()) pool->drop_unused();
  });
  will_look_ = true;
}

void MemoryPool::shrink_by(Timers* timers) {
  MutexLock lock(mutex_);
  timers_ = timers;
  will_look_ = false;
  if (idle_bytes_.load() > 0) look_later_locked(Clock::now());
}

void MemoryPool::close() noexcept {
  {
    MutexLock lock(mutex_);
    timers_ = nullptr;
    closed_ = true;
  }
  trim();
}

void MemoryPool::drop_unused() noexcept {
  const TimePoint latest = Clock::now() - options_.keep;
  std::vector<Block> dropped;
  try {
    MutexLock lock(mutex_);
    will_look_ = false;
    TimePoint oldest = TimePoint::max();
    for (size_t size_class = 0; size_class < kClasses; ++size_class) {
      std::vector<Idle>& blocks = idle_[size_class].blocks;
      const auto left = std::find_if(blocks.begin(), blocks.end(),
                                     [&](const Idle& idle) { return idle.since > latest; });
      dropped.reserve(dropped.size() + static_cast<size_t>(left - blocks.begin()));
      for (auto idle = blocks.begin(); idle != left; ++idle) {
        dropped.push_back({idle->block, size_class});
      }
      idle_bytes_.fetch_sub(static_cast<size_t>(left - blocks.begin()) * bytes_of(size_class),
                            std::memory_order_relaxed);
      blocks.erase(blocks.begin(), left);
      if (!blocks.empty()) oldest = std::min(oldest, blocks.front().since);
    }
    if (oldest != TimePoint::max()) look_later_locked(oldest);
  } catch (const std::bad_alloc&) {
    // The next block that comes back has another look taken.
  }
  for (const Block& block : dropped) free(block);
}

MemoryPoolCounters MemoryPool::counters() const noexcept {
  return {used_bytes_.load(std::memory_order_relaxed), idle_bytes_.load(std::memory_order_relaxed),
          reused_.load(std::memory_order_relaxed), made_.load(std::memory_order_relaxed)};
}

bool MemoryPool::make_room_locked(size_t bytes, std::vector<Block>& dropped) {
  if (bytes > options_.max_idle_bytes) return false;
  while (idle_bytes_.load(std::memory_order_relaxed) + bytes > options_.max_idle_bytes) {
    Shelf* oldest = nullptr;
    for (Shelf& shelf : idle_) {
      if (!shelf.blocks.empty() && (!oldest || shelf.last_use < oldest->last_use)) oldest = &shelf;
    }
    const auto size_class = static_cast<size_t>(oldest - idle_.data());
    dropped.push_back({oldest->blocks.front().block, size_class});
    oldest->blocks.erase(oldest->blocks.begin());
    idle_bytes_.fetch_sub(bytes_of(size_class), std::memory_order_relaxed);
  }
  return true;
}

void MemoryPool::trim() noexcept {
  std::array<Shelf, kClasses> idle;
  {
    MutexLock lock(mutex_);
    idle.swap(idle_);
    idle_bytes_.store(0, std::memory_order_relaxed);
  }
  for (size_t size_class = 0; size_class < kClasses; ++size_class) {
    for (const Idle& one : idle[size_class].blocks) free({one.block, size_class});
  }
}

}  // namespace farspan::net
