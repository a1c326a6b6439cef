// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Imports: copies what other processes export. Their memory and events are opened once and stay
// open while they are in use now and then: to open one takes up to milliseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/device/exports.h>

namespace farspan::device {

struct ImportLimits {
  // Open at once; more only while more are being copied.
  size_t regions = 1024;
  size_t events = 256;
  // What is open keeps the other process's device memory, also when that one has released it.
  std::chrono::milliseconds idle{1000};
};

struct ImportCounters {
  size_t regions = 0, events = 0;  // open now
  uint64_t opened = 0;             // regions, ever
  uint64_t copies = 0, bytes = 0;  // ever
};

// Regions are told apart by their ids: what another process allocates at an address after it has
// released what was there is another one. Both cannot be open at once, where the
// driver maps them by where they lie there. So what is open still of such a place is closed.
//
// Threading: every method from any thread.
// Lifetime:  the devices outlive it.
class Imports {
 public:
  explicit Imports(Devices& devices, ImportLimits limits = {});
  // Waits a while for copies that are under way, and closes all but what is still being copied.
  ~Imports();
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;

  // Gives `stream`, of the device where `to` is, the copy of what process `peer` exports. It begins
  // when the bytes have been written; the peer may be told that they are taken when `stream` has
  // come so far (Devices::then), not before.
  //   throws  Error kCorrupt: no export is like that; else as Devices: this process cannot open it.
  //           Nothing is copied then
  void copy(uint64_t peer, const Export& from, void* to, Stream stream);

  // That process is gone, or nothing of it will be copied any more.
  void forget(uint64_t peer) noexcept;
  // Closes what was forgotten, and what nobody has used for ImportLimits::idle, as far as no copy
  // is under way.
  //   returns  when to come again; max: nothing is open
  TimePoint close_idle(TimePoint now) noexcept;

  ImportCounters counters() const;

 private:
  using Count = std::shared_ptr<std::atomic<int>>;
  struct Opened {
    void* handle = nullptr;
    size_t bytes = 0;                                      // of a region
    uint64_t base = 0, end = 0;                            // of a region: there
    Count copies = std::make_shared<std::atomic<int>>(0);  // under way
    TimePoint used{};
    bool forgotten = false;
  };
  using Key = std::tuple<uint64_t, uint64_t, int>;  // peer, id there, device here
  using All = std::map<Key, Opened>;

  // What is not known here any more, and is to be closed: without the lock, since a device may have
  // to be done for that.
  struct Gone {
    All regions, events;
    bool empty() const noexcept { return regions.empty() && events.empty(); }
  };

  Opened open(int device, const Export& from);
  Opened& region_locked(const Key& key, const Export& from, TimePoint now) FARSPAN_REQUIRES(mutex_);
  Opened& event_locked(const Key& key, const Export& from, TimePoint now) FARSPAN_REQUIRES(mutex_);
  // Closes what that peer has released since.
  void make_way_locked(const Key& key, const Export& from) FARSPAN_REQUIRES(mutex_);
  // False: all are in use.
  bool let_one_go_locked(All& from, All& to) noexcept FARSPAN_REQUIRES(mutex_);
  TimePoint let_idle_go(TimePoint now, Gone& gone) noexcept;
  void close(const Gone& gone) noexcept;
  bool has_copies_locked() const noexcept FARSPAN_REQUIRES(mutex_);

  Devices& devices_;
  const ImportLimits limits_;
  mutable Mutex mutex_;
  size_t closing_ FARSPAN_GUARDED_BY(mutex_) = 0;  // of what was let go of
  CondVar closed_;
  All regions_ FARSPAN_GUARDED_BY(mutex_), events_ FARSPAN_GUARDED_BY(mutex_);
  ImportCounters counters_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::device
