#include <farspan/c10d/backends/nccl/communicator.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include <farspan/c10d/backends/nccl/apart.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist::nccl {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{1};

void wait_for(device::Devices& devices, device::Stream stream) noexcept {
  try {
    devices.synchronize(stream, Deadline::never());
  } catch (const Error&) {  // it has failed, and uses nothing any more
  }
}

// Those under way. A process that ends, and CUDA with it, gives them a moment.
class Aborts {
 public:
  static Aborts& all() {
    static Aborts* const one = [] {
      std::atexit([] { all().wait(); });
      return new Aborts;
    }();
    return *one;
  }
  void begin() {
    const MutexLock lock(mutex_);
    ++under_way_;
  }
  void end() {
    const MutexLock lock(mutex_);
    if (--under_way_ == 0) ended_.notify_all();
  }

 private:
  void wait() {
    MutexLock lock(mutex_);
    const Deadline deadline = Deadline::after(kAtExit);
    while (under_way_ > 0 && !deadline.expired()) ended_.wait_until(mutex_, deadline);
  }

  static constexpr std::chrono::seconds kAtExit{1};
  Mutex mutex_;
  CondVar ended_;
  int under_way_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

// NCCL may take its time, or for ever.
//   then  called when it is done; as run_apart() has it
void abort_apart(const std::shared_ptr<Library>& library, Comm comm, int device,
                 const std::function<void()>& then) noexcept {
  Aborts::all().begin();
  const bool is_begun = run_apart("farspan-abort", [library, comm, device, then] {
    try {
      library->devices()->enter(device);
    } catch (const Error&) {  // a device that has failed
    }
    library->abort(comm);
    Aborts::all().end();
    if (then) then();
  });
  if (is_begun) return;
  Aborts::all().end();
  log(LogLevel::kWarning, "c10d/nccl", "no thread to abort a communicator, which stays");
}

}  // namespace

std::shared_ptr<Communicator> Communicator::make(std::shared_ptr<Library> library, const Spec& spec,
                                                 const std::function<void()>& look) {
  const Comm comm = library->begin(spec.id, spec.device, spec.rank, spec.ranks);
  std::shared_ptr<Communicator> made;
  try {
    made.reset(new Communicator(library, comm, spec.device));
  } catch (...) {
    nccl::abort_apart(library, comm, spec.device, nullptr);
    throw;
  }
  try {
    while (library->state(comm) == Library::State::kBusy) {
      look();
      std::this_thread::sleep_for(kBetweenLooks);
    }
  } catch (...) {
    made->abort();
    throw;
  }
  return made;
}

Communicator::Communicator(std::shared_ptr<Library> library, Comm comm, int device)
    : library_(std::move(library)),
      comm_(comm),
      stream_(library_->devices()->new_stream(device)),
      place_(library_->devices()->new_event(device, device::Reach::kThisProcess)) {}

Communicator::~Communicator() {
  library_->devices()->end_event(place_);
  library_->devices()->end_stream(stream_);
}

void Communicator::follow(device::Stream later, device::Stream earlier) {
  device::Devices& devices = *library_->devices();
  devices.record(place_, earlier);
  devices.wait(later, place_);
}

void Communicator::check() {
  if (state_ != State::kOpen) return;
  try {
    library_->state(comm_);
  } catch (const Error&) {
    if (state_ == State::kOpen) throw;  // else abort() was called meanwhile
  }
}

void Communicator::abort(std::shared_ptr<const void> memory) noexcept {
  State before = State::kOpen;
  if (state_.compare_exchange_strong(before, State::kAborted)) abort_apart(std::move(memory));
}

void Communicator::abort_apart(std::shared_ptr<const void> memory) noexcept {
  const auto self = shared_from_this();
  nccl::abort_apart(library_, comm_, stream_.device, [self, memory = std::move(memory)] {
    if (memory) wait_for(*self->library_->devices(), self->stream_);
  });
}

void hold_until_done(std::shared_ptr<device::Devices> devices, device::Stream stream,
                     std::shared_ptr<const void> memory) noexcept {
  run_apart("farspan-hold", [devices = std::move(devices), stream, memory = std::move(memory)] {
    wait_for(*devices, stream);
  });
}

void Communicator::end() noexcept {
  State before = State::kOpen;
  if (!state_.compare_exchange_strong(before, State::kEnded)) return;
  if (!library_->end(comm_)) abort_apart(nullptr);
}

}  // namespace farspan::dist::nccl
