#include <farspan/c10d/device/simulated/simulated.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/shared_event.h>
#include <farspan/c10d/device/simulated/memory.h>
#include <farspan/c10d/device/simulated/stream.h>

namespace farspan::device {
namespace {

constexpr std::chrono::microseconds kBetweenLooks{
    20};  // at an event: its process cannot wake this one

// The things of one kind that were made, by the handles that are given out for them.
template <class T>
class Handles {
 public:
  explicit Handles(const char* kind) : kind_(kind) {}
  void* add(std::shared_ptr<T> thing) {
    MutexLock lock(mutex_);
    void* const handle = thing.get();
    all_.emplace(handle, std::move(thing));
    return handle;
  }
  std::shared_ptr<T> get(void* handle) const {
    MutexLock lock(mutex_);
    const auto found = all_.find(handle);
    if (found != all_.end()) return found->second;
    throw Error(Code::kInvalidArgument, std::string("this is no ") + kind_ + " of these devices");
  }
  // Null: there is none.
  std::shared_ptr<T> remove(void* handle) noexcept {
    MutexLock lock(mutex_);
    const auto found = all_.find(handle);
    if (found == all_.end()) return nullptr;
    auto thing = std::move(found->second);
    all_.erase(found);
    return thing;
  }
  size_t size() const {
    MutexLock lock(mutex_);
    return all_.size();
  }

 private:
  const char* const kind_;
  mutable Mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<T>> all_ FARSPAN_GUARDED_BY(mutex_);
};

std::vector<int> seen_with(const SimulationOptions& options) {
  if (!options.visible.empty()) return options.visible;
  std::vector<int> all(static_cast<size_t>(options.devices));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class Simulation final : public SimulatedDevices {
 public:
  explicit Simulation(SimulationOptions options)
      : options_(std::move(options)),
        visible_(seen_with(options_)),
        memory_(visible_, options_.memory, instance_),
        used_(visible_.size()) {}

  std::string_view kind() const noexcept override { return "simulated"; }
  int count() const override { return static_cast<int>(visible_.size()); }
  std::string uuid(int device) const override {
    check(device);
    return "SIM-" + options_.machine + "-" + std::to_string(visible_[static_cast<size_t>(device)]);
  }

  void* allocate(int device, size_t bytes) override {
    use(device);
    return memory_.allocate(device, bytes, true);
  }
  void* allocate_unnamed(int device, size_t bytes) override {
    use(device);
    return memory_.allocate(device, bytes, false);
  }
  void release(void* memory) noexcept override {
    if (!memory_.release(memory)) note("release of what is no allocation");
  }
  void let_host_memory_be_allocated(bool may) override { may_allocate_host_.store(may); }
  void* allocate_host(size_t bytes) override {
    if (!may_allocate_host_) throw Error(Code::kOverloaded, "no pinned memory");
    void* const memory = std::malloc(std::max<size_t>(bytes, 1));
    if (!memory) throw Error(Code::kOverloaded, "no memory left");
    return memory;
  }
  void release_host(void* memory) noexcept override { std::free(memory); }
  Region region_of(const void* address) const override { return memory_.region_of(address); }

  Stream new_stream(int device) override {
    use(device);
    const uint64_t seed = options_.seed * 1'000'003 + made_.fetch_add(1);
    return {device, streams_.add(std::make_shared<SimulatedStream>(seed, options_.most_late))};
  }
  void end_stream(Stream stream) noexcept override;
  void copy(Stream stream, void* to, const void* from, size_t bytes) override;
  void then(Stream stream, std::function<void()> done) override {
    streams_.get(stream.handle)->add(std::move(done));
  }
  bool synchronize(Stream stream, Deadline deadline) override;
  void let_streams_be_captured(bool are) override { are_captured_.store(are); }
  bool is_captured(Stream) override { return are_captured_; }

  Event new_event(int device, Reach reach) override {
    use(device);
    return events_.add(std::make_shared<SharedEvent>(instance_, reach));
  }
  void end_event(Event event) noexcept override {
    if (!events_.remove(event)) note("end of what is no event");
  }
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool has_come(Event event) override {
    const auto known = events_.get(event);
    return known->has_come(known->last_record());
  }

  MemoryName name_memory(void* base) override { return memory_.name(base); }
  void let_memory_be_opened(bool may) override { may_open_.store(may); }
  void* open_memory(int device, const MemoryName& name) override {
    if (!may_open_) throw Error(Code::kUnavailable, "memory of other processes cannot be opened");
    use(device);
    return memory_.open(device, name);
  }
  void close_memory(void* opened) noexcept override {
    if (!memory_.close(opened)) note("close of what was not opened");
  }
  EventName name_event(Event event) override { return events_.get(event)->name(); }
  Event open_event(int device, const EventName& name) override {
    use(device);
    return events_.add(std::make_shared<SharedEvent>(instance_, name));
  }

  std::vector<std::string> faults() const override {
    MutexLock lock(mutex_);
    return faults_;
  }
  bool is_in_use(int device) const override {
    check(device);
    return used_[static_cast<size_t>(device)];
  }
  size_t allocated(int device) const override { return memory_.allocated(device); }
  size_t opened() const override { return memory_.opened(); }
  size_t streams() const override { return streams_.size(); }
  size_t events() const override { return events_.size(); }

 private:
  void check(int device) const {
    if (device >= 0 && device < count()) return;
    throw Error(Code::kInvalidArgument, "there is no device " + std::to_string(device) + " of " +
                                            std::to_string(count()) + " here");
  }
  void use(int device) {
    check(device);
    used_[static_cast<size_t>(device)] = true;
  }
  void note(std::string fault) noexcept {
    MutexLock lock(mutex_);
    faults_.push_back(std::move(fault));
  }
  void copy_now(void* to, const void* from, size_t bytes) noexcept;

  const uint64_t instance_ = uint64_t{std::random_device()()} << 32 | std::random_device()();
  const SimulationOptions options_;
  const std::vector<int> visible_;  // by device here: its number on the machine
  SimulatedMemory memory_;
  std::vector<std::atomic<bool>> used_;  // by device
  std::atomic<uint64_t> made_{0};
  std::atomic<bool> may_open_{true}, may_allocate_host_{true}, are_captured_{false};
  mutable Mutex mutex_;
  std::vector<std::string> faults_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<SimulatedStream>> ended_ FARSPAN_GUARDED_BY(mutex_);
  Handles<SharedEvent> events_{"event"};
  Handles<SimulatedStream> streams_{"stream"};  // first to go: they use what is above
};

// Its thread ends by itself; who makes or ends the next one, or the end, waits for it.
void Simulation::end_stream(Stream stream) noexcept {
  std::shared_ptr<SimulatedStream> one = streams_.remove(stream.handle);
  if (!one) return note("end of what is no stream");
  one->end();
  std::vector<std::shared_ptr<SimulatedStream>> done;  // joined outside the lock
  MutexLock lock(mutex_);
  ended_.push_back(std::move(one));
  const auto first = std::partition(ended_.begin(), ended_.end(),
                                    [](const auto& ended) { return !ended->is_done(); });
  done.assign(std::make_move_iterator(first), std::make_move_iterator(ended_.end()));
  ended_.erase(first, ended_.end());
}

void Simulation::copy(Stream stream, void* to, const void* from, size_t bytes) {
  streams_.get(stream.handle)->add([this, to, from, bytes] { copy_now(to, from, bytes); });
}

void Simulation::copy_now(void* to, const void* from, size_t bytes) noexcept {
  if (bytes == 0) return;
  const SimulatedMemory::Place target = memory_.find(to, bytes), source = memory_.find(from, bytes);
  if (!target.data) return note("copy to " + target.fault);
  if (!source.data) return note("copy from " + source.fault);
  std::memmove(target.data, source.data, bytes);
}

bool Simulation::synchronize(Stream stream, Deadline deadline) {
  const auto arrival = std::make_shared<Arrival>();
  streams_.get(stream.handle)->add([arrival] { arrival->come(); });
  return arrival->wait(deadline);
}

void Simulation::record(Event event, Stream stream) {
  const auto known = events_.get(event);
  if (!known->is_own()) {
    throw Error(Code::kInvalidArgument, "an event of another process cannot be recorded here");
  }
  const auto on = streams_.get(stream.handle);
  const uint32_t record = known->record();
  on->add([known, record] { known->come(record); });
}

void Simulation::wait(Stream stream, Event event) {
  const auto known = events_.get(event);
  const uint32_t record = known->last_record();
  streams_.get(stream.handle)->add([known, record] {
    while (!known->has_come(record)) std::this_thread::sleep_for(kBetweenLooks);
  });
}

}  // namespace

std::unique_ptr<SimulatedDevices> make_simulated_devices(SimulationOptions options) {
  return std::make_unique<Simulation>(std::move(options));
}

}  // namespace farspan::device
