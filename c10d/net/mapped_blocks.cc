#include <farspan/c10d/net/mapped_blocks.h>

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::net {

bool MappedBytes::keep(uint64_t bytes) noexcept {
  if (idle_.fetch_add(bytes) + bytes <= max_idle_) return true;
  idle_.fetch_sub(bytes);
  return false;
}

std::shared_ptr<MappedBlocks> MappedBlocks::make(pid_t owner, Timers& timers, OnReturn on_return,
                                                 MappedBlocksOptions options) {
  if (!options.bytes) options.bytes = std::make_shared<MappedBytes>();
  return std::shared_ptr<MappedBlocks>(
      new MappedBlocks(owner, timers, std::move(on_return), std::move(options)));
}

MappedBlocks::MappedBlocks(pid_t owner, Timers& timers, OnReturn on_return,
                           MappedBlocksOptions options)
    : owner_(owner),
      options_(std::move(options)),
      timers_(&timers),
      on_return_(std::make_shared<OnReturn>(std::move(on_return))) {}

Buffer MappedBlocks::map(const BlockName& block, uint64_t offset, uint64_t bytes) {
  if (offset > block.bytes || bytes > block.bytes - offset) {
    throw Error(Code::kCorrupt, "a place outside of the block that it is said to be in");
  }
  // It stays where it is as long as it is in use.
  const Mapped* mapped = take_idle(block);
  if (!mapped) {
    SharedMemory memory = open(block);
    memory.close_descriptor();
    MutexLock lock(mutex_);
    const auto [added, is_new] = all_.try_emplace(block.id, Mapped{std::move(memory)});
    if (!is_new) throw Error(Code::kCorrupt, "a block was handed over twice at once");
    mapped = &added->second;
  }
  return use(*mapped, block.id, offset, bytes);
}

// Null: it is not mapped.
const MappedBlocks::Mapped* MappedBlocks::take_idle(const BlockName& block) {
  MutexLock lock(mutex_);
  const auto found = all_.find(block.id);
  if (found == all_.end()) return nullptr;
  Mapped& mapped = found->second;
  if (mapped.in_use || mapped.memory.size() != block.bytes) {
    throw Error(Code::kCorrupt, "a block was handed over that is in use here");
  }
  mapped.in_use = true;
  options_.bytes->drop(block.bytes);
  return &mapped;
}

SharedMemory MappedBlocks::open(const BlockName& block) const {
  const std::string path =
      "/proc/" + std::to_string(owner_) + "/fd/" + std::to_string(block.descriptor);
  OwnedDescriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (descriptor.get() < 0) {
    throw Error(Code::kUnavailable, "cannot open " + path + ": " + std::strerror(errno));
  }
  if (!SharedMemory::is_called(block.text(), descriptor)) {
    throw Error(Code::kCorrupt, path + " is not the block that was handed over");
  }
  return SharedMemory::open(std::move(descriptor), block.bytes);
}

Buffer MappedBlocks::use(const Mapped& mapped, uint64_t block, uint64_t offset, uint64_t bytes) {
  std::byte* const place = mapped.memory.data() + offset;
  options_.bytes->begin_use(mapped.memory.size());
  return Buffer(place, bytes,
                std::shared_ptr<void>(
                    place, [self = shared_from_this(), block](void*) { self->give_back(block); }));
}

Buffer MappedBlocks::copy_for(uint64_t block, const Buffer& copy) {
  return Buffer(copy.data(), copy.size(),
                std::shared_ptr<void>(copy.data(), [self = shared_from_this(), block,
                                                    owner = copy.owner()](void*) mutable {
                  owner.reset();
                  self->tell(block);
                }));
}

// It is idle before the owner hears of it, who may hand it over again at once.
void MappedBlocks::give_back(uint64_t block) noexcept {
  All::node_type dropped;  // unmapped outside the lock
  {
    MutexLock lock(mutex_);
    const auto found = all_.find(block);
    if (found != all_.end() && found->second.in_use) {
      options_.bytes->end_use(found->second.memory.size());
      if (!keep_locked(found->second)) dropped = all_.extract(found);
    }
  }
  dropped = {};
  tell(block);
}

void MappedBlocks::tell(uint64_t block) noexcept {
  std::shared_ptr<const OnReturn> on_return;
  {
    MutexLock lock(mutex_);
    on_return = on_return_;
  }
  if (on_return) (*on_return)(block);
}

bool MappedBlocks::keep_locked(Mapped& mapped) noexcept {
  if (!timers_ || !options_.bytes->keep(mapped.memory.size())) return false;
  mapped.in_use = false;
  mapped.idle_since = Clock::now();
  if (!will_look_) look_later_locked(mapped.idle_since);
  return true;
}

void MappedBlocks::look_later_locked(TimePoint idle_since) noexcept {
  try {
    timers_->add(idle_since + options_.keep, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->drop_unused();
    });
    will_look_ = true;
  } catch (const std::bad_alloc&) {
    will_look_ = false;  // the next one that becomes idle has it done
  }
}

template <class Condition>
void MappedBlocks::drop_idle_locked(const Condition& condition) noexcept {
  std::erase_if(all_, [&](const All::value_type& each) {
    const Mapped& mapped = each.second;
    if (mapped.in_use || !condition(mapped)) return false;
    options_.bytes->drop(mapped.memory.size());
    return true;
  });
}

void MappedBlocks::drop_unused() noexcept {
  const TimePoint latest = Clock::now() - options_.keep;
  MutexLock lock(mutex_);
  will_look_ = false;
  TimePoint oldest = TimePoint::max();
  drop_idle_locked([&](const Mapped& mapped) {
    if (mapped.idle_since <= latest) return true;
    oldest = std::min(oldest, mapped.idle_since);
    return false;
  });
  if (oldest != TimePoint::max() && timers_) look_later_locked(oldest);
}

void MappedBlocks::close() noexcept {
  std::shared_ptr<const OnReturn> on_return;  // goes outside the lock, with what it has
  MutexLock lock(mutex_);
  timers_ = nullptr;
  on_return.swap(on_return_);
  drop_idle_locked([](const Mapped&) { return true; });
}

}  // namespace farspan::net
