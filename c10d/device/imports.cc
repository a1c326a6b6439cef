#include <farspan/c10d/device/imports.h>

#include <algorithm>
#include <exception>
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
  Gone gone;  // what is still being copied stays open until this process ends
  {
    MutexLock lock(mutex_);
    while (let_one_go_locked(regions_, gone.regions)) {
    }
    while (let_one_go_locked(events_, gone.events)) {
    }
  }
  close(gone);
}

bool Imports::has_copies_locked() const noexcept {
  const auto is_used = [](const All::value_type& one) { return one.second.copies->load() > 0; };
  return std::any_of(regions_.begin(), regions_.end(), is_used);
}

void Imports::copy(uint64_t peer, const Export& from, void* to, Stream stream) {
  check(from);
  const TimePoint now = Clock::now();
  struct Closing {
    Imports& imports;
    Gone gone;
    ~Closing() { imports.close(gone); }
  } closing{*this, {}};
  MutexLock lock(mutex_);  // until the stream has it: nothing may be closed before
  const Opened& region = region_locked({peer, from.region, stream.device}, from, now);
  const std::byte* const bytes = static_cast<std::byte*>(region.handle) + from.offset;
  const Opened& event = event_locked({peer, from.event, stream.device}, from, now);
  const auto count = [in_region = region.copies, at_event = event.copies](int change) {
    in_region->fetch_add(change);
    at_event->fetch_add(change);
  };
  devices_.wait(stream, event.handle);
  // From now on the stream uses what is open, whatever happens.
  count(1);
  while (regions_.size() > limits_.regions && let_one_go_locked(regions_, closing.gone.regions)) {
  }
  while (events_.size() > limits_.events && let_one_go_locked(events_, closing.gone.events)) {
  }
  std::exception_ptr failure;
  try {
    devices_.copy(stream, to, bytes, from.bytes);
  } catch (...) {
    failure = std::current_exception();
  }
  try {
    devices_.then(stream, [count] { count(-1); });
  } catch (...) {  // nobody will be told of its end: it is waited for, or all stays open
    if (devices_.synchronize(stream, Deadline::after(kLastCopies))) count(-1);
    throw;
  }
  if (failure) std::rethrow_exception(failure);
  ++counters_.copies;
  counters_.bytes += from.bytes;
}

Imports::Opened Imports::open(int device, const Export& from) {
  Opened opened;
  opened.base = from.region_base;
  opened.end = from.region_base + from.region_bytes;
  opened.handle = devices_.open_memory(device, from.memory);
  try {
    opened.bytes = devices_.region_of(opened.handle).bytes;
  } catch (...) {
    devices_.close_memory(opened.handle);
    throw;
  }
  return opened;
}

Imports::Opened& Imports::region_locked(const Key& key, const Export& from, TimePoint now) {
  const int device = std::get<int>(key);
  auto found = regions_.find(key);
  for (const Deadline limit = Deadline::after(kLastCopies); found == regions_.end();) {
    make_way_locked(key, from);
    try {
      found = regions_.emplace(key, open(device, from)).first;
      ++counters_.opened;
    } catch (const Error&) {
      // What is in the way may be one of those that are being closed just now.
      if (closing_ == 0 || !closed_.wait_until(mutex_, limit)) throw;
      found = regions_.find(key);
    }
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
    found =
        events_.emplace(key, Opened{devices_.open_event(std::get<int>(key), from.written)}).first;
  }
  found->second.used = now;
  return found->second;
}

void Imports::make_way_locked(const Key& key, const Export& from) {
  const uint64_t base = from.region_base, end = base + from.region_bytes;
  std::erase_if(regions_, [&](const All::value_type& one) {
    const auto& [peer, id, device] = one.first;
    const Opened& opened = one.second;
    if (peer != std::get<0>(key) || device != std::get<int>(key)) return false;
    if (opened.end <= base || end <= opened.base || opened.copies->load() > 0) return false;
    devices_.close_memory(opened.handle);
    return true;
  });
}

// The one that nobody has used for longest.
bool Imports::let_one_go_locked(All& from, All& to) noexcept {
  auto oldest = from.end();
  for (auto one = from.begin(); one != from.end(); ++one) {
    if (one->second.copies->load() > 0) continue;
    if (oldest == from.end() || one->second.used < oldest->second.used) oldest = one;
  }
  if (oldest == from.end()) return false;
  to.insert(from.extract(oldest));
  ++closing_;
  return true;
}

void Imports::close(const Gone& gone) noexcept {
  if (gone.empty()) return;
  for (const auto& [key, region] : gone.regions) devices_.close_memory(region.handle);
  for (const auto& [key, event] : gone.events) devices_.end_event(event.handle);
  MutexLock lock(mutex_);
  closing_ -= gone.regions.size() + gone.events.size();
  closed_.notify_all();
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
  Gone gone;
  const TimePoint next = let_idle_go(now, gone);
  close(gone);
  return next;
}

TimePoint Imports::let_idle_go(TimePoint now, Gone& gone) noexcept {
  MutexLock lock(mutex_);
  TimePoint next = TimePoint::max();
  for (const auto& [from, to] : {std::pair{&regions_, &gone.regions}, {&events_, &gone.events}}) {
    for (auto one = from->begin(); one != from->end();) {
      const auto here = one++;
      const Opened& opened = here->second;
      const TimePoint end = opened.used + limits_.idle;
      const bool is_over = opened.forgotten || end <= now;
      if (is_over && opened.copies->load() == 0) {
        to->insert(from->extract(here));
        ++closing_;
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
