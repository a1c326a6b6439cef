#include <farspan/c10d/device/imports.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

// How often to look whether the copies of what was forgotten are over.
constexpr std::chrono::milliseconds kForgottenLooks{50};
// How long the end waits for copies. Those of a peer that never writes last for ever.
constexpr std::chrono::seconds kLastCopies{2};

void check(const Export& from) {
  if (from.bytes > 0 && from.bytes <= from.region_bytes &&
      from.offset <= from.region_bytes - from.bytes) {
    return;
  }
  throw Error(Code::kCorrupt, "an export of " + std::to_string(from.bytes) + " bytes at " +
                                  std::to_string(from.offset) + " of " +
                                  std::to_string(from.region_bytes));
}

}  // namespace

Imports::Imports(Devices& devices, ImportLimits limits) : devices_(devices), limits_(limits) {}

Imports::~Imports() {
  // By looks: the driver's threads that count copies down must not wait for anybody's lock.
  const Deadline deadline = Deadline::after(kLastCopies);
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!has_copies_locked() || deadline.expired()) break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  MutexLock lock(mutex_);  // what is still being copied stays open until this process ends
  while (close_one_locked(regions_)) {
  }
  while (close_one_locked(events_)) {
  }
}

bool Imports::has_copies_locked() const noexcept {
  const auto is_used = [](const All::value_type& one) { return one.second.copies->load() > 0; };
  return std::any_of(regions_.begin(), regions_.end(), is_used);
}

void Imports::copy(uint64_t peer, const Export& from, void* to, Stream stream) {
  check(from);
  const TimePoint now = Clock::now();
  Count in_region, at_event;
  MutexLock lock(mutex_);  // until the stream has it: nothing may be closed before
  Opened& region = region_locked({peer, from.region, stream.device}, from, now);
  in_region = region.copies;
  in_region->fetch_add(1);  // or opening the event might close the region
  try {
    Opened& event = event_locked({peer, from.event, stream.device}, from, now);
    at_event = event.copies;
    at_event->fetch_add(1);
    devices_.wait(stream, event.handle);
    devices_.copy(stream, to, static_cast<std::byte*>(region.handle) + from.offset, from.bytes);
    try {
      devices_.then(stream, [in_region, at_event] {
        in_region->fetch_sub(1);
        at_event->fetch_sub(1);
      });
    } catch (...) {  // nobody would be told of its end
      devices_.synchronize(stream, Deadline::after(kLastCopies));
      throw;
    }
  } catch (...) {
    in_region->fetch_sub(1);
    if (at_event) at_event->fetch_sub(1);
    throw;
  }
  ++counters_.copies;
  counters_.bytes += from.bytes;
}

Imports::Opened& Imports::region_locked(const Key& key, const Export& from, TimePoint now) {
  auto found = regions_.find(key);
  if (found == regions_.end()) {
    while (regions_.size() >= limits_.regions && close_one_locked(regions_)) {
    }
    void* const memory = devices_.open_memory(std::get<int>(key), from.memory);
    try {
      found = regions_.emplace(key, Opened{memory, devices_.region_of(memory).bytes}).first;
    } catch (...) {
      devices_.close_memory(memory);
      throw;
    }
    ++counters_.opened;
  }
  found->second.used = now;
  const size_t bytes = found->second.bytes;
  if (bytes >= from.offset + from.bytes) return found->second;
  throw Error(Code::kCorrupt, "an export of a region of " + std::to_string(from.region_bytes) +
                                  " bytes, which has " + std::to_string(bytes));
}

Imports::Opened& Imports::event_locked(const Key& key, const Export& from, TimePoint now) {
  auto found = events_.find(key);
  if (found == events_.end()) {
    while (events_.size() >= limits_.events && close_one_locked(events_)) {
    }
    found =
        events_.emplace(key, Opened{devices_.open_event(std::get<int>(key), from.written)}).first;
  }
  found->second.used = now;
  return found->second;
}

void Imports::close_locked(All& all, All::iterator one) noexcept {
  if (&all == &regions_) {
    devices_.close_memory(one->second.handle);
  } else {
    devices_.end_event(one->second.handle);
  }
  all.erase(one);
}

// The one that nobody has used for longest. False: all are in use.
bool Imports::close_one_locked(All& all) noexcept {
  auto oldest = all.end();
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (one->second.copies->load() > 0) continue;
    if (oldest == all.end() || one->second.used < oldest->second.used) oldest = one;
  }
  if (oldest == all.end()) return false;
  close_locked(all, oldest);
  return true;
}

void Imports::forget(uint64_t peer) noexcept {
  MutexLock lock(mutex_);
  for (All* const all : {&regions_, &events_}) {
    for (auto& [key, opened] : *all) {
      if (std::get<0>(key) == peer) opened.forgotten = true;
    }
  }
}

TimePoint Imports::close_idle(TimePoint now) noexcept {
  MutexLock lock(mutex_);
  TimePoint next = TimePoint::max();
  for (All* const all : {&regions_, &events_}) {
    for (auto one = all->begin(); one != all->end();) {
      const auto here = one++;
      const Opened& opened = here->second;
      const TimePoint end = opened.used + limits_.idle;
      const bool is_over = opened.forgotten || end <= now;
      if (is_over && opened.copies->load() == 0) {
        close_locked(*all, here);
      } else {
        next = std::min(next, is_over ? now + kForgottenLooks : end);
      }
    }
  }
  return next;
}

ImportCounters Imports::counters() const {
  MutexLock lock(mutex_);
  ImportCounters counters = counters_;
  counters.regions = regions_.size();
  counters.events = events_.size();
  return counters;
}

}  // namespace farspan::device
