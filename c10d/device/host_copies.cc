#include <farspan/c10d/device/host_copies.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::device {

// Blocks come back in threads of the driver's, which use no Devices: they are only put down here.
class HostCopies::Pool {
 public:
  //   returns  a block at rest; null: there is none, and `may_add` says whether one may be
  //   allocated
  std::byte* take(size_t most, bool& may_add) {
    MutexLock lock(mutex_);
    may_add = false;
    if (at_rest_.empty()) {
      may_add = blocks_ < most;
      if (may_add) ++blocks_;
      return nullptr;
    }
    std::byte* const block = at_rest_.back().memory;
    at_rest_.pop_back();
    return block;
  }
  void not_added() {
    MutexLock lock(mutex_);
    --blocks_;
  }
  void put(std::byte* block) {
    MutexLock lock(mutex_);
    at_rest_.push_back({block, Clock::now()});
    changed_.notify_all();
  }
  // All that there are, or those that have come back by then.
  std::vector<std::byte*> close(Deadline deadline) {
    MutexLock lock(mutex_);
    while (at_rest_.size() < blocks_ && changed_.wait_until(mutex_, deadline)) {
    }
    return take_until(TimePoint::max());
  }
  // Those that came back by then. `next`: when the first of the others did, or may; max: there are
  // no others.
  std::vector<std::byte*> take_idle(TimePoint before, TimePoint& next) {
    MutexLock lock(mutex_);
    std::vector<std::byte*> idle = take_until(before);
    next = at_rest_.empty() ? TimePoint::max() : at_rest_.front().since;
    if (at_rest_.size() < blocks_) next = std::min(next, Clock::now());
    return idle;
  }
  size_t blocks() const {
    MutexLock lock(mutex_);
    return blocks_;
  }

 private:
  struct AtRest {
    std::byte* memory;
    TimePoint since;
  };
  std::vector<std::byte*> take_until(TimePoint before) FARSPAN_REQUIRES(mutex_) {
    std::vector<std::byte*> taken;
    size_t count = 0;
    for (; count < at_rest_.size() && at_rest_[count].since <= before; ++count) {
      taken.push_back(at_rest_[count].memory);
    }
    at_rest_.erase(at_rest_.begin(), at_rest_.begin() + static_cast<ptrdiff_t>(count));
    blocks_ -= count;
    return taken;
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<AtRest> at_rest_ FARSPAN_GUARDED_BY(mutex_);  // the oldest first
  size_t blocks_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

HostCopies::HostCopies(Devices& devices, HostCopyLimits limits)
    : devices_(devices), limits_(limits), pool_(std::make_shared<Pool>()) {}

HostCopies::~HostCopies() {
  // What is under way for longer keeps its block for good.
  for (std::byte* block : pool_->close(Deadline::after(std::chrono::seconds(10)))) {
    devices_.release_host(block);
  }
}

TimePoint HostCopies::release_idle(TimePoint now) noexcept {
  TimePoint next;
  for (std::byte* block : pool_->take_idle(now - kIdle, next)) devices_.release_host(block);
  return next == TimePoint::max() ? next : next + kIdle;
}

size_t HostCopies::blocks() const { return pool_->blocks(); }

std::vector<HostCopies::Block> HostCopies::take_for(size_t bytes) {
  std::vector<Block> blocks;
  for (size_t left = bytes > limits_.block ? 2 : 1; left > 0; --left) {
    bool may_add = false;
    std::byte* memory = pool_->take(limits_.blocks, may_add);
    if (!memory && !may_add) break;
    if (!memory) {
      try {
        memory = static_cast<std::byte*>(devices_.allocate_host(limits_.block));
      } catch (const Error& error) {
        pool_->not_added();
        if (error.code() == Code::kOverloaded) break;
        throw;
      }
    }
    blocks.push_back({{memory, [pool = pool_](std::byte* block) { pool->put(block); }}, nullptr});
  }
  return blocks;
}

void HostCopies::let_pass(Stream stream, Block& block) {
  block.passed = std::make_shared<Arrival>();
  devices_.then(stream, [memory = block.memory, passed = block.passed] { passed->come(); });
}

HostCopies::End HostCopies::from_device(Stream stream, void* to, const void* from, size_t bytes,
                                        Deadline deadline) {
  std::vector<Block> blocks = take_for(bytes);
  if (blocks.empty()) return End::kNoRoom;
  const std::shared_ptr<void> copied(devices_.new_event(stream.device, Reach::kThisProcess),
                                     [this](Event event) { devices_.end_event(event); });
  const auto size_at = [&](size_t at) { return std::min(limits_.block, bytes - at); };
  size_t asked = 0;
  const auto ask = [&] {  // the device for the next block
    if (asked >= bytes) return;
    Block& block = blocks[asked / limits_.block % blocks.size()];
    devices_.copy(stream, block.memory.get(), static_cast<const std::byte*>(from) + asked,
                  size_at(asked));
    devices_.record(copied.get(), stream);
    let_pass(stream, block);
    asked += size_at(asked);
  };
  for (size_t i = 0; i < blocks.size(); ++i) ask();
  for (size_t done = 0; done < bytes; done += size_at(done)) {
    const Block& block = blocks[done / limits_.block % blocks.size()];
    if (!block.passed->wait(deadline)) return End::kLate;
    devices_.has_come(copied.get());  // throws where the device has failed, and copied nothing
    std::memcpy(static_cast<std::byte*>(to) + done, block.memory.get(), size_at(done));
    ask();
  }
  return End::kDone;
}

HostCopies::End HostCopies::to_device(Stream stream, void* to, const void* from, size_t bytes,
                                      Deadline deadline) {
  std::vector<Block> blocks = take_for(bytes);
  if (blocks.empty()) return End::kNoRoom;
  for (size_t done = 0, i = 0; done < bytes; done += limits_.block, ++i) {
    Block& block = blocks[i % blocks.size()];
    if (block.passed && !block.passed->wait(deadline)) return End::kLate;
    const size_t size = std::min(limits_.block, bytes - done);
    std::memcpy(block.memory.get(), static_cast<const std::byte*>(from) + done, size);
    devices_.copy(stream, static_cast<std::byte*>(to) + done, block.memory.get(), size);
    let_pass(stream, block);
  }
  return End::kDone;
}

}  // namespace farspan::device
