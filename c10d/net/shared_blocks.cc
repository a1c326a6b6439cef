#include <farspan/c10d/net/shared_blocks.h>

#include <iterator>
#include <random>
#include <utility>

namespace farspan::net {
namespace {

uint64_t random_word() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

std::string BlockName::text() const { return "farspan-block-" + std::to_string(id); }

auto SharedBlocks::find_in(auto& blocks, const void* address) {
  const auto* const place = static_cast<const std::byte*>(address);
  auto behind = blocks.upper_bound(place);
  if (behind == blocks.begin()) return blocks.end();
  const auto found = std::prev(behind);
  return place < found->first + found->second.memory.size() ? found : blocks.end();
}

SharedBlocks::SharedBlocks() : first_id_(random_word()) {}

void* SharedBlocks::make(size_t bytes) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    while (id == 0) id = first_id_ + made_++;
  }
  SharedMemory memory = SharedMemory::create(bytes, BlockName{id}.text());
  std::byte* const place = memory.data();
  MutexLock lock(mutex_);
  blocks_.emplace(place, Block{std::move(memory), id});
  return place;
}

// Unmapped outside the lock, after it is known no more: the place may be taken at once.
void SharedBlocks::free(void* block, size_t) noexcept {
  Blocks::node_type freed;
  MutexLock lock(mutex_);
  freed = blocks_.extract(static_cast<const std::byte*>(block));
}

bool SharedBlocks::may_keep(void* block) noexcept {
  MutexLock lock(mutex_);
  const auto found = find_in(blocks_, block);
  return found != blocks_.end() && !found->second.is_abandoned;
}

std::optional<SharedBlocks::Place> SharedBlocks::find(const void* address) const {
  MutexLock lock(mutex_);
  const auto found = find_in(blocks_, address);
  if (found == blocks_.end() || found->second.is_abandoned) return std::nullopt;
  const auto& [begin, block] = *found;
  return Place{{block.id, block.memory.size(), block.memory.descriptor()},
               static_cast<uint64_t>(static_cast<const std::byte*>(address) - begin)};
}

void SharedBlocks::abandon(const void* address) noexcept {
  MutexLock lock(mutex_);
  const auto found = find_in(blocks_, address);
  if (found != blocks_.end()) found->second.is_abandoned = true;
}

}  // namespace farspan::net
