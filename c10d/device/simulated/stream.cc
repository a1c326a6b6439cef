#include <farspan/c10d/device/simulated/stream.h>

#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

const std::string kEvent = "event";

uint64_t next_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

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

SimulatedEvent::SimulatedEvent(uint64_t instance, Reach reach)
    : reach_(reach),
      instance_(instance),
      id_(next_id()),
      memory_(net::SharedMemory::create(sizeof(Words), Name::file(kEvent, instance_, id_))) {
  new (memory_.data()) Words;
}

SimulatedEvent::SimulatedEvent(const Name& name)
    : reach_(Reach::kThisHost),
      instance_(name.instance),
      maker_(static_cast<int>(syscall(SYS_pidfd_open, name.process, 0))),
      id_(name.id),
      memory_(name.open(kEvent)) {
  if (!maker_) throw Error(Code::kUnavailable, "the process of that event has ended");
  if (memory_.size() != sizeof(Words)) throw Error(Code::kCorrupt, "that is no event");
}

SimulatedEvent::SimulatedEvent(uint64_t instance, const EventName& name)
    : SimulatedEvent(Name::from(name, kEvent, instance)) {}

SimulatedEvent::Words& SimulatedEvent::words() const noexcept {
  return *std::launder(reinterpret_cast<Words*>(memory_.data()));
}

EventName SimulatedEvent::name() const {
  if (reach_ != Reach::kThisHost || !is_own()) {
    throw Error(Code::kInvalidArgument, "this event is of one process only, or of another one");
  }
  return Name{getpid(), memory_.descriptor(), instance_, id_, sizeof(Words)}.to_bytes();
}

uint64_t SimulatedEvent::record() noexcept { return words().recorded.fetch_add(1) + 1; }
void SimulatedEvent::come(uint64_t record) noexcept {
  std::atomic<uint64_t>& word = words().of(record);
  uint64_t before = word.load();
  while (before < record && !word.compare_exchange_weak(before, record)) {
  }
}
uint64_t SimulatedEvent::last_record() const noexcept { return words().recorded.load(); }

bool SimulatedEvent::has_come(uint64_t record) const noexcept {
  if (words().of(record).load() >= record) return true;
  if (is_own()) return false;
  pollfd process{maker_.get(), POLLIN, 0};
  return poll(&process, 1, 0) > 0;  // it has ended, whether or not anybody has taken note
}

}  // namespace farspan::device
