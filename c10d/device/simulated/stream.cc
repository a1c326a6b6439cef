#include <farspan/c10d/device/simulated/stream.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::device {
namespace {

// What an EventName holds.
struct Name {
  pid_t process;
  int32_t descriptor;
  uint64_t instance;
  uint64_t id;
};
static_assert(sizeof(Name) <= sizeof(EventName));

std::string file_name(uint64_t instance, uint64_t id) {
  return "farspan.event." + std::to_string(instance) + "." + std::to_string(id);
}

uint64_t next_id() noexcept {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Name parse(uint64_t instance, const EventName& bytes) {
  Name name;
  std::memcpy(&name, bytes.data(), sizeof name);
  if (name.instance == instance) {
    throw Error(Code::kInvalidArgument, "a process cannot open an event of its own");
  }
  return name;
}

net::SharedMemory open(const Name& name, size_t bytes) {
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  net::OwnedDescriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor || !net::SharedMemory::is_called(file_name(name.instance, name.id), descriptor)) {
    throw Error(Code::kUnavailable, "that event is no more, or cannot be opened here");
  }
  return net::SharedMemory::open(std::move(descriptor), bytes);
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
      maker_(0),
      id_(next_id()),
      memory_(net::SharedMemory::create(sizeof(Words), file_name(instance_, id_))) {
  new (memory_.data()) Words;
}

SimulatedEvent::SimulatedEvent(uint64_t instance, const EventName& name)
    : reach_(Reach::kThisHost),
      instance_(parse(instance, name).instance),
      maker_(parse(instance, name).process),
      id_(parse(instance, name).id),
      memory_(open(parse(instance, name), sizeof(Words))) {}

SimulatedEvent::Words& SimulatedEvent::words() const noexcept {
  return *std::launder(reinterpret_cast<Words*>(memory_.data()));
}

EventName SimulatedEvent::name() const {
  if (reach_ != Reach::kThisHost || !is_own()) {
    throw Error(Code::kInvalidArgument, "this event is of one process only, or of another one");
  }
  const Name name{getpid(), memory_.descriptor(), instance_, id_};
  EventName bytes{};
  std::memcpy(bytes.data(), &name, sizeof name);
  return bytes;
}

uint64_t SimulatedEvent::record() noexcept { return words().recorded.fetch_add(1) + 1; }
void SimulatedEvent::come(uint64_t record) noexcept {
  uint64_t before = words().come.load();
  while (before < record && !words().come.compare_exchange_weak(before, record)) {
  }
}
uint64_t SimulatedEvent::last_record() const noexcept { return words().recorded.load(); }

bool SimulatedEvent::has_come(uint64_t record) const noexcept {
  if (words().come.load() >= record) return true;
  return maker_ != 0 && kill(maker_, 0) != 0 && errno == ESRCH;
}

}  // namespace farspan::device
