#include <farspan/c10d/device/staging.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

// A few sizes only, so that blocks are used again: powers of two, from this one.
constexpr size_t kLeast = size_t{1} << 20;

size_t rounded(size_t bytes) {
  size_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

Staging::~Staging() {
  MutexLock lock(mutex_);
  for (const auto& [device, of] : all_) {
    for (const AtRest& one : of.at_rest) release(one.block);
  }
}

Staging::Block Staging::take(int device, size_t bytes) {
  if (bytes > most_) return {};
  const size_t size = std::min(rounded(bytes), most_);
  size_t missing = 0;
  {
    MutexLock lock(mutex_);
    Of& of = all_[device];
    const auto same = std::find_if(of.at_rest.rbegin(), of.at_rest.rend(),
                                   [&](const AtRest& one) { return one.block.bytes == size; });
    if (same != of.at_rest.rend()) {
      const Block block = same->block;
      of.at_rest.erase(std::next(same).base());
      return block;
    }
    if (of.bytes > most_ - size) missing = of.bytes - (most_ - size);
  }
  if (missing > 0) release_if(device, missing, [](const AtRest&) { return true; });
  {
    MutexLock lock(mutex_);
    Of& of = all_[device];
    if (of.bytes > most_ - size) return {};
    of.bytes += size;
  }
  try {
    return {device, static_cast<std::byte*>(devices_.allocate(device, size)), size, {}};
  } catch (const Error& error) {
    MutexLock lock(mutex_);
    all_[device].bytes -= size;
    if (error.code() == Code::kOverloaded) return {};
    throw;
  }
}

void Staging::give_back(const Block& block) noexcept {
  MutexLock lock(mutex_);
  all_[block.device].at_rest.push_back({block, Clock::now()});
}

TimePoint Staging::release_idle(TimePoint before) noexcept {
  std::vector<int> devices;
  {
    MutexLock lock(mutex_);
    for (const auto& [device, of] : all_) devices.push_back(device);
  }
  for (const int device : devices) {
    release_if(device, SIZE_MAX, [&](const AtRest& one) { return one.since <= before; });
  }
  TimePoint next = TimePoint::max();
  MutexLock lock(mutex_);
  for (const auto& [device, of] : all_) {
    for (const AtRest& one : of.at_rest) next = std::min(next, one.since);
  }
  return next;
}

void Staging::end_events() noexcept {
  std::vector<Event> ended;
  {
    MutexLock lock(mutex_);
    for (auto& [device, of] : all_) {
      for (AtRest& one : of.at_rest) {
        if (one.block.written.event) ended.push_back(one.block.written.event);
        one.block.written = {};
      }
    }
  }
  for (const Event one : ended) devices_.end_event(one);
}

size_t Staging::events() const {
  size_t count = 0;
  MutexLock lock(mutex_);
  for (const auto& [device, of] : all_) {
    count += static_cast<size_t>(std::ranges::count_if(
        of.at_rest, [](const AtRest& one) { return one.block.written.event != nullptr; }));
  }
  return count;
}

bool Staging::is_written(const Block& block) const noexcept {
  try {
    return !block.written.event || devices_.has_come(block.written.event);
  } catch (const Error&) {  // the device has failed, and writes no more
    return true;
  }
}

void Staging::release(const Block& block) noexcept {
  devices_.release(block.memory);
  if (block.written.event) devices_.end_event(block.written.event);
}

// Without the lock: the device may take its time.
template <class IsWanted>
void Staging::release_if(int device, size_t most, const IsWanted& is_wanted) noexcept {
  std::vector<AtRest> wanted;
  {
    MutexLock lock(mutex_);
    std::vector<AtRest>& at_rest = all_[device].at_rest;
    const auto first = std::stable_partition(at_rest.begin(), at_rest.end(),
                                             [&](const AtRest& one) { return !is_wanted(one); });
    wanted.assign(first, at_rest.end());
    at_rest.erase(first, at_rest.end());
  }
  size_t released = 0;
  std::vector<AtRest> kept;
  for (const AtRest& one : wanted) {
    if (released >= most || !is_written(one.block)) {
      kept.push_back(one);
      continue;
    }
    release(one.block);
    released += one.block.bytes;
  }
  MutexLock lock(mutex_);
  Of& of = all_[device];
  of.bytes -= released;
  of.at_rest.insert(of.at_rest.begin(), kept.begin(), kept.end());
}

}  // namespace farspan::device
