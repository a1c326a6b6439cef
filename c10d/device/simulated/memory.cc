#include <farspan/c10d/device/simulated/memory.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/device/simulated/simulated.h>

namespace farspan::device {
namespace {

constexpr size_t kAlignment = 256;

const std::string kMemory = "memory";

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Error no_such(const char* what) {
  return Error(Code::kInvalidArgument, std::string("this is no ") + what + " of these devices");
}

}  // namespace

SimulatedMemory::SimulatedMemory(std::vector<int> numbers, size_t bytes_of_each, uint64_t instance)
    : numbers_(std::move(numbers)),
      bytes_of_each_(bytes_of_each),
      instance_(instance),
      allocated_(numbers_.size()) {}

SimulatedMemory::~SimulatedMemory() {
  for (const auto& [base, bytes] : reserved_) munmap(const_cast<std::byte*>(base), bytes);
}

void SimulatedMemory::check(int device) const {
  if (device >= 0 && static_cast<size_t>(device) < numbers_.size()) return;
  throw Error(Code::kInvalidArgument, "there is no device " + std::to_string(device) + " of " +
                                          std::to_string(numbers_.size()) + " here");
}

std::byte* SimulatedMemory::reserve_locked(size_t bytes) {
  std::vector<std::byte*>& free = free_[bytes];
  if (!free.empty()) {
    std::byte* const base = free.back();
    free.pop_back();
    return base;
  }
  void* const base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw Error(Code::kOverloaded, "no addresses left");
  reserved_.emplace(static_cast<std::byte*>(base), bytes);
  return static_cast<std::byte*>(base);
}

std::byte* SimulatedMemory::allocate(int device, size_t bytes, bool can_be_named) {
  check(device);
  const size_t size = aligned(std::max<size_t>(bytes, 1));
  MutexLock lock(mutex_);
  size_t& allocated = allocated_[static_cast<size_t>(device)];
  if (size > bytes_of_each_ - allocated) {
    throw Error(Code::kOverloaded, "device " + std::to_string(device) + " has no " +
                                       std::to_string(size) + " bytes left")
        .advice("release memory there");
  }
  const uint64_t id = ++last_id_;
  auto memory = net::SharedMemory::create(size, HostName::file(kMemory, instance_, id));
  std::byte* const base = reserve_locked(size);
  allocated += size;
  blocks_.emplace(
      base, std::make_shared<Block>(
                Block{{device, base, size, id, can_be_named}, std::move(memory), {instance_, id}}));
  return base;
}

void SimulatedMemory::forget_locked(const Block& block) {
  free_[block.region.bytes].push_back(block.region.base);
  blocks_.erase(block.region.base);
}

bool SimulatedMemory::release(void* memory) noexcept {
  MutexLock lock(mutex_);
  const auto found = blocks_.find(static_cast<std::byte*>(memory));
  if (found == blocks_.end() || found->second->times_opened > 0) return false;
  const std::shared_ptr<Block> block = found->second;
  std::memset(block->memory.data(), static_cast<int>(kPoison), block->region.bytes);
  allocated_[static_cast<size_t>(block->region.device)] -= block->region.bytes;
  forget_locked(*block);
  return true;
}

std::shared_ptr<SimulatedMemory::Block> SimulatedMemory::block_of_locked(
    const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  auto next = blocks_.upper_bound(at);
  if (next == blocks_.begin()) return nullptr;
  const std::shared_ptr<Block>& block = std::prev(next)->second;
  return at < block->region.base + block->region.bytes ? block : nullptr;
}

bool SimulatedMemory::is_reserved_locked(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  auto next = reserved_.upper_bound(at);
  if (next == reserved_.begin()) return false;
  --next;
  return at < next->first + next->second;
}

Region SimulatedMemory::region_of(const void* address) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Block> block = block_of_locked(address);
  if (!block) throw no_such("memory");
  return block->region;
}

MemoryName SimulatedMemory::name(void* base) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Block> block = block_of_locked(base);
  if (!block || block->region.base != base || !block->region.can_be_named) {
    throw no_such("allocation that can be named");
  }
  return HostName{getpid(),
                  block->memory.descriptor(),
                  instance_,
                  block->region.id,
                  block->region.bytes,
                  numbers_[static_cast<size_t>(block->region.device)],
                  reinterpret_cast<uint64_t>(block->region.base)}
      .to_bytes();
}

std::byte* SimulatedMemory::open(int device, const MemoryName& bytes) {
  check(device);
  const HostName name = HostName::from(bytes, kMemory, instance_);
  if (std::ranges::find(numbers_, name.device) == numbers_.end()) {
    throw Error(Code::kUnavailable,
                "memory of a device that this process does not see cannot be opened");
  }
  MutexLock lock(mutex_);
  for (const auto& [base, block] : blocks_) {
    if (block->times_opened == 0 || block->maker != std::pair(name.instance, name.id)) continue;
    if (block->region.device != device) continue;
    ++block->times_opened;
    return block->region.base;
  }
  check_place_locked(device, name);
  net::SharedMemory memory = name.open(kMemory);
  memory.close_descriptor();
  std::byte* const base = reserve_locked(name.bytes);
  blocks_.emplace(base, std::make_shared<Block>(Block{{device, base, name.bytes, ++last_id_, false},
                                                      std::move(memory),
                                                      {name.instance, name.id},
                                                      name.base,
                                                      1}));
  return base;
}

// As CUDA does, which maps another process's memory by where it lies there.
void SimulatedMemory::check_place_locked(int device, const HostName& name) const {
  for (const auto& [base, block] : blocks_) {
    if (block->times_opened == 0 || block->maker.first != name.instance) continue;
    const bool is_beside = block->base_there >= name.base + name.bytes ||
                           name.base >= block->base_there + block->region.bytes;
    if (block->region.device != device || is_beside) continue;
    throw Error(Code::kUnavailable, "memory that was there before is mapped still");
  }
}

bool SimulatedMemory::close(void* opened) noexcept {
  MutexLock lock(mutex_);
  const auto found = blocks_.find(static_cast<std::byte*>(opened));
  if (found == blocks_.end() || found->second->times_opened == 0) return false;
  const std::shared_ptr<Block> block = found->second;
  if (--block->times_opened == 0) forget_locked(*block);
  return true;
}

SimulatedMemory::Place SimulatedMemory::find(const void* address, size_t bytes) const {
  MutexLock lock(mutex_);
  const std::shared_ptr<Block> block = block_of_locked(address);
  if (!block && is_reserved_locked(address)) {
    return {nullptr, nullptr, "memory that was released, or closed"};
  }
  if (!block) {  // of the processor
    return {static_cast<std::byte*>(const_cast<void*>(address)), nullptr, ""};
  }
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(address) - block->region.base);
  if (bytes > block->region.bytes - offset) return {nullptr, nullptr, "beyond the end of memory"};
  return {block->memory.data() + offset, block, ""};
}

size_t SimulatedMemory::allocated(int device) const {
  check(device);
  MutexLock lock(mutex_);
  return allocated_[static_cast<size_t>(device)];
}

size_t SimulatedMemory::opened() const {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [base, block] : blocks_) count += block->times_opened > 0;
  return count;
}

}  // namespace farspan::device
