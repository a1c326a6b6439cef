#include <farspan/c10d/device/simulated/stream.h>

#include <pthread.h>

#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
SimulatedStream::SimulatedStream(uint64_t seed, std::chrono::microseconds most_late)
    : most_late_(most_late), random_(seed), thread_([this] { run(); }) {}

SimulatedStream::~SimulatedStream() {
  end();
  thread_.join();
}

void SimulatedStream::add(std::function<void()> work) {
  MutexLock lock(mutex_);
  if (ended_) throw Error(Code::kInvalidArgument, "this stream has ended");
  work_.push_back(std::move(work));
  changed_.notify_one();
}

void SimulatedStream::end() noexcept {
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

bool SimulatedStream::is_done() const {
  MutexLock lock(mutex_);
  return done_;
}

// Half of all work comes at once, so that short and long delays meet.
void SimulatedStream::be_late() {
  const auto most = static_cast<uint64_t>(most_late_.count());
  if (most == 0 || random_() % 2 == 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % most));
}

void SimulatedStream::run() {
  pthread_setname_np(pthread_self(), "device");
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      while (work_.empty() && !ended_) changed_.wait(mutex_);
      if (work_.empty()) {
        done_ = true;
        return;
      }
      work = std::move(work_.front());
      work_.pop_front();
    }
    be_late();
    work();
  }
}

}  // namespace farspan::device
