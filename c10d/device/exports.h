// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Exports: device memory that other processes of the host copy, kept as it is until they have; and
// what such a process is told, to find it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/device/staging.h>

namespace farspan::device {

// Where bytes of another process lie, and when they are there to be copied.
struct Export {
  int device = 0;            // of the process that exports it
  uint64_t region = 0;       // Region::id
  MemoryName memory{};       // of the whole region
  uint64_t region_base = 0;  // its address there
  uint64_t region_bytes = 0;
  uint64_t offset = 0;  // of the bytes in their region
  uint64_t bytes = 0;
  uint64_t event = 0;      // an id; the same name has the same id
  EventName written{};     // comes when the bytes have been written
  uint64_t id = 0;         // which of all it is: with the event, of no other
  bool is_staged = false;  // they are a copy; of no interest to who copies
};

// An event is used for one export at a time: recorded anew before its importer has begun to wait,
// it would make that one wait for the wrong place.
//
// Threading: every method from any thread.
// Lifetime:  the devices outlive it.
class Exports {
 public:
  //   staging  the most bytes of each device that are kept for memory which other processes cannot
  //            open; 0: such memory is not exported
  explicit Exports(Devices& devices, size_t staging = size_t{64} << 20)
      : devices_(devices), staging_(devices, staging) {}
  ~Exports();
  // What is kept for exports to come goes when nobody has needed it for so long.
  static constexpr std::chrono::milliseconds kIdle{1000};
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  // Exports what `stream` will have written when it has come as far as it has been given by now.
  //   id       the export's, never used again; several may share one, and are taken together
  //   owner    keeps the memory, until taken()
  //   returns  nothing for memory that other processes cannot open, when there is no room to stage
  //            it: it takes another way
  //   throws   Error as Devices: kOverloaded: no events left
  std::optional<Export> make(uint64_t id, const void* memory, size_t bytes, Stream stream,
                             std::shared_ptr<void> owner);
  // The same for who copies within this process, and finds the memory by its address.
  //   returns  an event of that place in `stream`, until taken()
  //   throws   Error as Devices
  Event make_local(uint64_t id, Stream stream, std::shared_ptr<void> owner);
  // For who copies on behalf of one that could not: has `stream`, of that device, wait until the
  // bytes that `from` tells of have been written.
  //   returns  where they lie: they stay as they are, also when they are taken, as long as anybody
  //            has it, which must not outlive this; null: it is not kept, or no more
  //   throws   Error as Devices
  std::shared_ptr<const void> read(const Export& from, Stream stream) const;
  // All of them have been copied, or never will be. Unknown ids have no effect.
  void taken(uint64_t id) noexcept;
  // Lets go of what has been idle. May block as Devices::release.
  //   returns  when to come again; max: nothing is kept
  TimePoint release_idle(TimePoint now) noexcept;
  // The peer is gone: nothing will be taken any more. Events that it may still wait for end.
  void close() noexcept;

  size_t staging() const noexcept { return staging_.most(); }

  size_t kept() const;      // exports that were not taken
  size_t events() const;    // of them all, and those at rest
  uint64_t staged() const;  // bytes, ever

 private:
  struct Kept {
    int device = 0;
    NamedEvent event;
    std::shared_ptr<void> owner;
    Staging::Block staged;
    const void* memory = nullptr;  // what can be read(), if any
    size_t bytes = 0;
  };
  struct AtRest {
    NamedEvent event;
    TimePoint since;
  };
  NamedEvent rested_event(int device);
  // Until nobody has it any more.
  void keep(uint64_t id, Kept kept);
  void rest(const Kept& kept) noexcept;

  Devices& devices_;
  Staging staging_;
  mutable Mutex mutex_;
  uint64_t staged_ FARSPAN_GUARDED_BY(mutex_) = 0;
  uint64_t last_event_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::unordered_multimap<uint64_t, std::shared_ptr<const Kept>> kept_ FARSPAN_GUARDED_BY(mutex_);
  // By device; the one that has been there for longest comes first.
  std::unordered_map<int, std::vector<AtRest>> at_rest_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::device
