#include <farspan/c10d/device/shared_event.h>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

const std::string kEvent = "event";

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

bool is_at_least(uint32_t word, uint32_t record) noexcept {
  return static_cast<int32_t>(word - record) >= 0;
}

bool is_readable(int descriptor) noexcept {
  pollfd one{descriptor, POLLIN, 0};
  return poll(&one, 1, 0) > 0;
}

}  // namespace

SharedEvent::SharedEvent(uint64_t instance, Reach reach)
    : reach_(reach),
      instance_(instance),
      id_(next_id()),
      memory_(net::SharedMemory::create(sizeof(Words), HostName::file(kEvent, instance_, id_))) {
  new (memory_.data()) Words;
}

SharedEvent::SharedEvent(const HostName& name)
    : reach_(Reach::kThisHost),
      instance_(name.instance),
      maker_(static_cast<int>(syscall(SYS_pidfd_open, name.process, 0))),
      id_(name.id),
      memory_(name.open(kEvent)) {
  if (!maker_) throw Error(Code::kUnavailable, "the process of that event has ended");
  if (memory_.size() != sizeof(Words)) throw Error(Code::kCorrupt, "that is no event");
  memory_.close_descriptor();
}

SharedEvent::SharedEvent(uint64_t instance, const EventName& name)
    : SharedEvent(HostName::from(name, kEvent, instance)) {}

SharedEvent::Words& SharedEvent::words() const noexcept {
  return *std::launder(reinterpret_cast<Words*>(memory_.data()));
}

EventName SharedEvent::name() const {
  if (reach_ != Reach::kThisHost || !is_own()) {
    throw Error(Code::kInvalidArgument, "this event is of one process only, or of another one");
  }
  return HostName{getpid(), memory_.descriptor(), instance_, id_, sizeof(Words)}.to_bytes();
}

uint32_t SharedEvent::record() noexcept { return words().recorded.fetch_add(1) + 1; }

void SharedEvent::come(uint32_t record) noexcept {
  std::atomic<uint32_t>& word = words().of(record);
  uint32_t before = word.load();
  while (!is_at_least(before, record) && !word.compare_exchange_weak(before, record)) {
  }
}

uint32_t SharedEvent::last_record() const noexcept { return words().recorded.load(); }

bool SharedEvent::has_come(uint32_t record) const noexcept {
  if (is_at_least(words().of(record).load(), record)) return true;
  return !is_own() &&
         is_readable(maker_.get());  // it has ended, whether or not anybody has seen it
}

bool SharedEvent::has_all_come() const noexcept {
  const uint32_t last = last_record();
  for (uint32_t back = 0; back < words().come.size(); ++back) {
    if (!has_come(last - back)) return false;
  }
  return true;
}

size_t SharedEvent::offset_of(uint32_t record) const noexcept {
  return static_cast<size_t>(reinterpret_cast<std::byte*>(&words().of(record)) - memory_.data());
}

void SharedEvent::come_all() noexcept {
  const uint32_t last = last_record();
  for (uint32_t back = 0; back < words().come.size(); ++back) come(last - back);
}

DeathWatch::~DeathWatch() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  wake();
  thread.join();
}

void DeathWatch::add(std::shared_ptr<SharedEvent> event) {
  MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    woken_ = net::OwnedDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!woken_) throw Error(Code::kOverloaded, "no descriptors left");
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      throw Error(Code::kOverloaded, std::string("no thread can be made: ") + error.what());
    }
  }
  events_.insert(std::move(event));
  wake();
}

void DeathWatch::remove(const std::shared_ptr<SharedEvent>& event) noexcept {
  MutexLock lock(mutex_);
  if (events_.erase(event) > 0) wake();
}

void DeathWatch::wake() const noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(woken_.get(), &one, sizeof one);  // full: awake
}

void DeathWatch::run() {
  pthread_setname_np(pthread_self(), "farspan-deaths");
  std::vector<std::shared_ptr<SharedEvent>> watched;
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      watched.assign(events_.begin(), events_.end());
    }
    std::vector<pollfd> all{{woken_.get(), POLLIN, 0}};
    for (const auto& event : watched) all.push_back({event->maker(), POLLIN, 0});
    if (poll(all.data(), all.size(), -1) < 0) continue;  // interrupted
    uint64_t ignored = 0;
    [[maybe_unused]] const auto got = read(woken_.get(), &ignored, sizeof ignored);
    for (size_t i = 0; i < watched.size(); ++i) {
      if (all[i + 1].revents == 0) continue;
      watched[i]->come_all();
      MutexLock lock(mutex_);
      events_.erase(watched[i]);
    }
    watched.clear();  // or it would keep what was removed
  }
}

}  // namespace farspan::device
