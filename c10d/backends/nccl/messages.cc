#include <farspan/c10d/backends/nccl/messages.h>

#include <chrono>
#include <string>
#include <system_error>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/messages/receive.h>
#include <farspan/c10d/base/log.h>

namespace farspan::dist::nccl {

// So many small messages to itself, for whose receives nobody waits.
constexpr size_t kMostKept = 1024;

Error other_device_error(int device, int of_group) {
  return Error(Code::kInvalidArgument, "the tensor is on device " + std::to_string(device) +
                                           ", and the group's communicator on device " +
                                           std::to_string(of_group))
      .advice("a rank of a group has one device; make a new_group() for the other one");
}

// Of its own thread, when whoever is told of an end there was the last to hold the group.
Messages::~Messages() {
  if (thread_.joinable()) thread_.detach();
}

std::optional<int> Messages::device() const {
  MutexLock lock(mutex_);
  return device_;
}

std::shared_ptr<Exchange> Messages::make(End end, const Message& message, Block data) {
  const int device = message.on_device->stream.device;
  {
    MutexLock lock(mutex_);
    if (device_ && *device_ != device) throw other_device_error(device, *device_);
    device_ = device;
  }
  return std::make_shared<Exchange>(options_.nccl->devices(), end, message, data);
}

Future<int> Messages::send(const Message& message, Block data) {
  std::shared_ptr<Exchange> exchange;
  try {
    exchange = make(End::kSend, message, data);
  } catch (const Error& error) {
    return make_error_future<int>(error);
  }
  const bool is_to_itself = message.peer == options_.spec.rank;
  {
    MutexLock lock(mutex_);
    exchange->number = ++sent_;
    if (is_to_itself) {
      own_.emplace(exchange->number, exchange);
      exchange->is_kept = message.on_device->is_own && own_.size() <= kMostKept;
    }
  }
  Message announcement = message;
  announcement.on_device = nullptr;
  announcement.announced_by = &exchange->number;
  if (exchange->is_kept) announcement.deadline = Deadline::never();
  const Future<int> announced = options_.control->send(announcement, data);
  if (exchange->is_kept && !announced.has_error()) {
    message.on_device->hold_up = [](device::Stream) {};
    message.on_device->ended = make_ready_future(int{message.peer});
    exchange->set_value(message.peer);
  } else {
    exchange->announced = announced;
  }
  announced.on_ready([self = shared_from_this(), exchange, announced, is_to_itself] {
    if (announced.has_error()) {
      if (is_to_itself) self->take_own(exchange->number);
      exchange->fail(announced.error());
    } else if (!is_to_itself) {  // else by who receives it
      self->receiver_found(exchange);
    }
  });
  return Future<int>(exchange);
}

Future<int> Messages::recv(const Message& message, Block data) {
  std::shared_ptr<Exchange> exchange;
  try {
    exchange = make(End::kRecv, message, data);
  } catch (const Error& error) {
    return make_error_future<int>(error);
  }
  Message announcement = message;
  announcement.on_device = nullptr;
  announcement.announced_by = &exchange->number;
  exchange->announced = options_.control->recv(announcement, data);
  exchange->announced.on_ready([self = shared_from_this(), exchange] {
    if (exchange->announced.has_error()) {
      exchange->fail(exchange->announced.error());
      // Its sender may give it to the device yet.
      if (exchange->number == messages::kNotComeInTime) {
        self->options_.on_failed(exchange->announced.error());
      }
    } else {
      self->sender_found(exchange);
    }
  });
  return Future<int>(exchange);
}

void Messages::receiver_found(const std::shared_ptr<Exchange>& exchange) {
  try {
    direction(exchange->message.peer, End::kSend)->send(exchange);
  } catch (const Error& error) {
    exchange->fail(error);
  }
}

void Messages::sender_found(const std::shared_ptr<Exchange>& exchange) {
  try {
    const int source = exchange->announced.value();
    const auto way = direction(source, End::kRecv);
    if (source != options_.spec.rank) return way->recv(exchange);
    const auto from = take_own(exchange->number);
    if (!from) throw left_error();  // meanwhile
    way->copy(from, exchange);
  } catch (const Error& error) {
    exchange->fail(error);
  }
}

std::shared_ptr<Exchange> Messages::take_own(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = own_.find(number);
  if (found == own_.end()) return nullptr;
  auto exchange = std::move(found->second);
  own_.erase(found);
  return exchange;
}

//   throws  why there is none any more
std::shared_ptr<Direction> Messages::direction(int peer, End end) {
  std::shared_ptr<Direction> made;
  {
    MutexLock lock(mutex_);
    if (failure_) throw *failure_;
    std::shared_ptr<Direction>& one = directions_[{peer, end}];
    if (one) return one;
    one = made = std::make_shared<Direction>(
        Direction::Options{options_.nccl, options_.control, options_.spec.rank, peer, end, *device_,
                           [weak = weak_from_this()] {
                             if (const auto self = weak.lock()) self->wake();
                           },
                           options_.on_failed});
  }
  made->watch();
  return made;
}

std::vector<std::shared_ptr<Direction>> Messages::directions() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Direction>> all;
  for (const auto& [key, one] : directions_) all.push_back(one);
  return all;
}

void Messages::wake() {
  MutexLock lock(mutex_);
  if (std::exchange(is_to_look_, true)) return;
  changed_.notify_all();
  if (stopped_ || thread_.joinable()) return;
  try {
    thread_ = start_watching(weak_from_this(), options_.nccl->devices(), *device_);
  } catch (const std::system_error& error) {
    is_to_look_ = false;  // the next message tries again; whoever waits looks himself
    log(LogLevel::kWarning, "c10d/nccl",
        std::string("no thread to look after messages: ") + error.what());
  }
}

bool Messages::wait_and_look() {
  {
    MutexLock lock(mutex_);
    while (!stopped_ && !is_to_look_) changed_.wait(mutex_);
    if (!stopped_) changed_.wait_until(mutex_, Deadline::after(kBetweenLooks));
    if (stopped_) return false;
    is_to_look_ = false;
  }
  bool is_busy = false;
  for (const auto& one : directions()) is_busy |= one->look();
  if (!is_busy) return true;
  MutexLock lock(mutex_);
  is_to_look_ = true;
  return true;
}

void Messages::finish(Deadline deadline) {
  const auto all = directions();
  for (const auto& one : all) {
    while (one->is_busy() && !deadline.expired()) {
      one->look();
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

bool Messages::fail(const Error& why) noexcept {
  {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = why;
  }
  bool had_begun = false;
  for (const auto& one : directions()) had_begun |= one->fail(why);
  return had_begun;
}

void Messages::stop() noexcept {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    own_.clear();
    changed_.notify_all();
    if (thread_.get_id() != std::this_thread::get_id()) thread.swap(thread_);
  }
  for (const auto& one : directions()) one->stop();
  if (thread.joinable()) thread.join();
}

}  // namespace farspan::dist::nccl
