#include <farspan/c10d/device/exports.h>

#include <utility>

namespace farspan::device {

Exports::~Exports() { close(); }

// Making and naming one takes a millisecond on some machines; those at rest are used again.
Exports::Named Exports::rested_event(int device) {
  Named made;
  {
    MutexLock lock(mutex_);
    std::vector<Named>& at_rest = at_rest_[device];
    if (!at_rest.empty()) {
      const Named rested = at_rest.back();
      at_rest.pop_back();
      return rested;
    }
    made.id = ++last_event_;
  }
  made.event = devices_.new_event(device, Reach::kThisHost);
  try {
    made.name = devices_.name_event(made.event);
  } catch (...) {
    devices_.end_event(made.event);
    throw;
  }
  return made;
}

std::optional<Export> Exports::make(uint64_t id, const void* memory, size_t bytes, Stream stream,
                                    std::shared_ptr<void> owner) {
  const Region region = devices_.region_of(memory);
  if (!region.can_be_named) return std::nullopt;
  Export made;
  made.device = region.device;
  made.region = region.id;
  made.memory = devices_.name_memory(region.base);
  made.region_bytes = region.bytes;
  made.offset = static_cast<uint64_t>(static_cast<const std::byte*>(memory) - region.base);
  made.bytes = bytes;
  const Named event = rested_event(stream.device);
  made.event = event.id;
  made.written = event.name;
  try {
    devices_.record(event.event, stream);
    MutexLock lock(mutex_);
    kept_.emplace(id, Kept{stream.device, event, std::move(owner)});
  } catch (...) {
    MutexLock lock(mutex_);
    at_rest_[stream.device].push_back(event);
    throw;
  }
  return made;
}

void Exports::taken(uint64_t id) noexcept {
  std::vector<std::shared_ptr<void>> owners;  // released outside the lock
  MutexLock lock(mutex_);
  const auto [first, last] = kept_.equal_range(id);
  for (auto one = first; one != last; ++one) {
    at_rest_[one->second.device].push_back(one->second.event);
    owners.push_back(std::move(one->second.owner));
  }
  kept_.erase(first, last);
}

void Exports::close() noexcept {
  std::unordered_multimap<uint64_t, Kept> kept;
  std::unordered_map<int, std::vector<Named>> at_rest;
  {
    MutexLock lock(mutex_);
    kept.swap(kept_);
    at_rest.swap(at_rest_);
  }
  for (const auto& [id, one] : kept) devices_.end_event(one.event.event);
  for (const auto& [device, events] : at_rest) {
    for (const Named& event : events) devices_.end_event(event.event);
  }
}

size_t Exports::kept() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

size_t Exports::events() const {
  MutexLock lock(mutex_);
  size_t count = kept_.size();
  for (const auto& [device, events] : at_rest_) count += events.size();
  return count;
}

}  // namespace farspan::device
