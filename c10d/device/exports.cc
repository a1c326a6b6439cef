#include <farspan/c10d/device/exports.h>

#include <algorithm>
#include <utility>

namespace farspan::device {

Exports::~Exports() { close(); }

// Making and naming one takes a millisecond on some machines; those at rest are used again.
NamedEvent Exports::rested_event(int device) {
  NamedEvent made;
  {
    MutexLock lock(mutex_);
    std::vector<AtRest>& at_rest = at_rest_[device];
    if (!at_rest.empty()) {
      const NamedEvent rested = at_rest.back().event;
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
  Region region = devices_.region_of(memory);
  Kept kept{stream.device, {}, std::move(owner), {}};
  if (!region.can_be_named) {
    kept.staged = staging_.take(region.device, bytes);
    if (!kept.staged.memory) return std::nullopt;
  }
  Export made;
  try {
    kept.event = kept.staged.written;
    if (kept.event.event) {
      devices_.wait(stream, kept.event.event);
    } else {
      kept.event = rested_event(stream.device);
    }
    if (kept.staged.memory) {
      devices_.copy(stream, kept.staged.memory, memory, bytes);
      memory = kept.staged.memory;
      region = devices_.region_of(memory);
    }
    devices_.record(kept.event.event, stream);
    made.memory = devices_.name_memory(region.base);
  } catch (...) {
    rest(kept);
    throw;
  }
  made.device = region.device;
  made.region = region.id;
  made.region_base = reinterpret_cast<uint64_t>(region.base);
  made.region_bytes = region.bytes;
  made.offset = static_cast<uint64_t>(static_cast<const std::byte*>(memory) - region.base);
  made.bytes = bytes;
  made.event = kept.event.id;
  made.written = kept.event.name;
  made.id = id;
  made.is_staged = kept.staged.memory != nullptr;
  kept.memory = memory;
  kept.bytes = bytes;
  keep(id, std::move(kept));
  return made;
}

Event Exports::make_local(uint64_t id, Stream stream, std::shared_ptr<void> owner) {
  Kept kept{stream.device, rested_event(stream.device), std::move(owner), {}};
  const Event event = kept.event.event;
  try {
    devices_.record(event, stream);
  } catch (...) {
    rest(kept);
    throw;
  }
  keep(id, std::move(kept));
  return event;
}

void Exports::keep(uint64_t id, Kept kept) {
  const std::shared_ptr<const Kept> held(new Kept(std::move(kept)), [this](const Kept* one) {
    rest(*one);
    delete one;
  });
  MutexLock lock(mutex_);
  if (held->staged.memory) staged_ += held->bytes;
  kept_.emplace(id, held);
}

void Exports::rest(const Kept& kept) noexcept {
  MutexLock lock(mutex_);
  if (kept.staged.memory) {
    Staging::Block block = kept.staged;
    block.written = kept.event;
    staging_.give_back(block);
  } else if (kept.event.event) {
    at_rest_[kept.device].push_back({kept.event, Clock::now()});
  }
}

TimePoint Exports::release_idle(TimePoint now) noexcept {
  const TimePoint before = now - kIdle;
  TimePoint next = staging_.release_idle(before);
  std::vector<NamedEvent> ended;
  {
    MutexLock lock(mutex_);
    for (auto& [device, at_rest] : at_rest_) {
      std::erase_if(at_rest, [&](const AtRest& one) {
        if (one.since <= before) ended.push_back(one.event);
        return one.since <= before;
      });
      if (!at_rest.empty()) next = std::min(next, at_rest.front().since);
    }
    if (!kept_.empty()) next = std::min(next, now);
  }
  for (const NamedEvent& one : ended) devices_.end_event(one.event);
  return next == TimePoint::max() ? next : std::max(next, before + kIdle / 8) + kIdle;
}

std::shared_ptr<const void> Exports::read(const Export& from, Stream stream) const {
  std::shared_ptr<const Kept> kept;
  {
    MutexLock lock(mutex_);
    const auto [first, last] = kept_.equal_range(from.id);
    const auto found = std::find_if(first, last, [&](const auto& each) {
      const Kept& one = *each.second;
      return one.memory && one.device == stream.device && one.bytes == from.bytes &&
             one.event.id == from.event && one.event.name == from.written;
    });
    if (found == last) return nullptr;
    kept = found->second;
  }
  devices_.wait(stream, kept->event.event);
  return {kept, kept->memory};
}

void Exports::taken(uint64_t id) noexcept {
  // They rest, and their owners go, without the lock.
  std::vector<std::shared_ptr<const Kept>> done;
  MutexLock lock(mutex_);
  const auto [first, last] = kept_.equal_range(id);
  for (auto one = first; one != last; ++one) done.push_back(std::move(one->second));
  kept_.erase(first, last);
}

void Exports::close() noexcept {
  std::unordered_multimap<uint64_t, std::shared_ptr<const Kept>> kept;
  {
    MutexLock lock(mutex_);
    kept.swap(kept_);
  }
  kept.clear();  // what nobody reads rests now
  std::unordered_map<int, std::vector<AtRest>> at_rest;
  {
    MutexLock lock(mutex_);
    at_rest.swap(at_rest_);
  }
  staging_.end_events();
  for (const auto& [device, events] : at_rest) {
    for (const AtRest& one : events) devices_.end_event(one.event.event);
  }
}

size_t Exports::kept() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

uint64_t Exports::staged() const {
  MutexLock lock(mutex_);
  return staged_;
}

size_t Exports::events() const {
  MutexLock lock(mutex_);
  size_t count = kept_.size() + staging_.events();
  for (const auto& [device, events] : at_rest_) count += events.size();
  return count;
}

}  // namespace farspan::device
