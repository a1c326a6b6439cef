#include <farspan/c10d/backends/nccl/direction.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <farspan/c10d/backends/absence.h>

namespace farspan::dist::nccl {
namespace {

constexpr int kEndTag = -4, kMeetTag = -5, kPlaceTag = -6;  // Peers has the one above
constexpr std::chrono::milliseconds kBetweenChecks{20};
constexpr std::chrono::seconds kGrace{1};  // for what the other rank has done its part of

// Who leaves has done its part of what devices have been given.
bool has_left(const Error& why) { return why.message().ends_with("has left the group"); }

}  // namespace

// Its own deadline does not end it: the other rank does the same.
class Direction::Task final : public Lane::Task {
 public:
  Task(std::shared_ptr<Direction> direction, Job job, uint64_t number)
      : Lane::Task(direction->lane_, Deadline::never()),
        direction_(std::move(direction)),
        job_(std::move(job)),
        number_(number) {}

  void run(uint64_t) noexcept override {
    const Direction::Options& options = direction_->options_;
    try {
      if (!Exchange::is_helping()) options.nccl->devices()->enter(options.device);
    } catch (const Error&) {  // what uses the device says so
    }
    direction_->give(job_, number_);
  }
  void complete() noexcept override { end(job_.exchange->failure); }
  void reject() noexcept override { end(left_error()); }
  void expire(uint64_t) noexcept override { reject(); }

 private:
  void end(const std::optional<Error>& failure) {
    const Job job = std::exchange(job_, {});  // which knows this task
    const int peer = direction_->options_.peer;
    direction_.reset();
    for (const auto& one : {job.from, job.exchange}) {
      if (!one) continue;
      if (failure) {
        one->set_error(*failure);
      } else {
        one->set_value(peer);
      }
    }
    set_value(-1);
  }

  std::shared_ptr<Direction> direction_;
  Job job_;
  const uint64_t number_;
};

Direction::~Direction() {
  if (own_stream_) options_.nccl->devices()->end_stream(*own_stream_);
}

Message Direction::letter(int tag, DType type) const {
  Message message;
  message.peer = options_.peer;
  message.tag = tag;
  message.type = type;
  return message;
}

// By a message that nobody ever sends.
void Direction::watch() {
  if (is_copy()) return;
  const auto place = std::make_shared<std::byte>();
  const Future<int> end = options_.control->recv(letter(kEndTag, DType::UINT8), {place.get(), 1});
  end.on_ready([weak = weak_from_this(), end, place] {
    const auto self = weak.lock();
    if (self && end.has_error()) self->lose(end.error());
  });
}

void Direction::lose(const Error& why) {
  if (why.code() == Code::kShutdown || has_left(why)) return;
  if (why.code() != Code::kDisconnected) {  // the group has failed
    end_all(why);
    return;
  }
  {
    MutexLock lock(mutex_);
    lost_ = why;
    grace_ = Deadline::after(kGrace);
  }
  options_.on_work();
}

void Direction::send(std::shared_ptr<Exchange> exchange) {
  const auto place = std::make_shared<std::array<uint64_t, 2>>();
  std::optional<Error> why;
  {
    MutexLock lock(mutex_);
    why = failure_;
    if (!why) {
      post_locked({exchange});
      *place = {posted_, exchange->number};
    }
  }
  if (why) return exchange->fail(*why);
  const Block block{reinterpret_cast<std::byte*>(place->data()), place->size()};
  options_.control->send(letter(kPlaceTag, DType::UINT64), block).on_ready([place] {});
  options_.on_work();
}

void Direction::recv(std::shared_ptr<Exchange> exchange) {
  std::optional<Error> why;
  {
    MutexLock lock(mutex_);
    why = failure_;
    if (!why) {
      unplaced_.emplace(exchange->number, exchange);
      post_placed_locked();
    }
  }
  if (why) return exchange->fail(*why);
  await_place();
  options_.on_work();
}

void Direction::copy(std::shared_ptr<Exchange> from, std::shared_ptr<Exchange> to) {
  std::optional<Error> why;
  {
    MutexLock lock(mutex_);
    why = failure_;
    if (!why) post_locked({to, from});
  }
  if (why) {
    from->fail(*why);
    return to->fail(*why);
  }
  options_.on_work();
}

// As many come as there are receives, in any order.
void Direction::await_place() {
  const auto place = std::make_shared<std::array<uint64_t, 2>>();
  const Block block{reinterpret_cast<std::byte*>(place->data()), place->size()};
  const Future<int> come = options_.control->recv(letter(kPlaceTag, DType::UINT64), block);
  come.on_ready([weak = weak_from_this(), come, place] {
    const auto self = weak.lock();
    if (!self) return;
    if (come.has_error()) {
      self->end_unplaced(come.error());
    } else {
      self->note_place((*place)[0], (*place)[1]);
    }
  });
}

void Direction::note_place(uint64_t place, uint64_t number) {
  {
    MutexLock lock(mutex_);
    places_.emplace(place, number);
    post_placed_locked();
  }
  options_.on_work();
}

// Those whose place is known, as far as the ones before are there.
void Direction::post_placed_locked() {
  while (!failure_ && !places_.empty() && places_.begin()->first == posted_ + 1) {
    const auto found = unplaced_.find(places_.begin()->second);
    if (found == unplaced_.end()) return;
    auto exchange = std::move(found->second);
    unplaced_.erase(found);
    places_.erase(places_.begin());
    post_locked({std::move(exchange)});
  }
}

// The other rank will not give its device what they are for.
void Direction::end_unplaced(const Error& why) {
  std::map<uint64_t, std::shared_ptr<Exchange>> ended;
  {
    MutexLock lock(mutex_);
    for (const auto& [place, number] : places_) {
      if (auto known = unplaced_.extract(number)) ended.insert(std::move(known));
    }
    ended.swap(unplaced_);
  }
  for (const auto& [number, exchange] : ended) exchange->fail(why);
}

// Under the lock, so that tasks come in the order of their numbers; a lane is stopped after that.
void Direction::post_locked(Job job) {
  job.memory[0] = std::move(job.exchange->on_device().memory);
  if (job.from) job.memory[1] = std::move(job.from->on_device().memory);
  under_way_.push_back({job, ++posted_, std::make_shared<State>(weak_from_this())});
  const auto exchange = job.exchange;
  const auto task = std::make_shared<Task>(shared_from_this(), std::move(job), posted_);
  exchange->set_task(Future<int>(task));
  lane_->post(task);
}

Direction::Launch* Direction::find_locked(uint64_t number) {
  const auto found = std::ranges::find(under_way_, number, &Launch::number);
  return found == under_way_.end() ? nullptr : &*found;
}

void Direction::give(const Job& job, uint64_t number) {
  try {
    check();
    give_to_device(job, number);
  } catch (...) {
    fail_and_tell(to_error(std::current_exception()));  // the first says why
    std::optional<device::Stream> stream;
    {
      MutexLock lock(mutex_);
      job.exchange->failure = failure_;
      stream = communicator_ ? communicator_->stream() : own_stream_;
    }
    // A part may have begun, after the others have been ended.
    if (stream) hold(*stream, std::make_shared<const Job>(job));
  }
}

void Direction::give_to_device(const Job& job, uint64_t number) {
  connect();
  device::Stream stream;
  std::shared_ptr<State> state;
  {
    MutexLock lock(mutex_);
    if (failure_) throw *failure_;
    stream = communicator_ ? communicator_->stream() : *own_stream_;
    state = find_locked(number)->state;
  }
  begin_on_device(job, stream);
  const auto devices = options_.nccl->devices();
  const SharedEvent done = make_event(devices, options_.device);
  devices->record(done.get(), stream);
  for (const auto& one : {job.exchange, job.from}) {
    if (!one || one->is_kept) continue;
    one->on_device().hold_up = [devices, done](device::Stream held) {
      devices->wait(held, done.get());
    };
    one->on_device().ended = Future<int>(state);
  }
  MutexLock lock(mutex_);
  if (failure_) throw *failure_;
  find_locked(number)->done = done;
}

void Direction::begin_on_device(const Job& job, device::Stream stream) {
  device::Devices& devices = *options_.nccl->devices();
  const Exchange& exchange = *job.exchange;
  devices.wait(stream, exchange.begins.get());
  if (job.from) {
    devices.wait(stream, job.from->begins.get());
    if (exchange.bytes() > 0) {
      devices.copy(stream, exchange.data.data, job.from->data.data, exchange.bytes());
    }
    return;
  }
  if (exchange.bytes() == 0) return;  // on both ranks
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mutex_);
    communicator = communicator_;
  }
  communicator->call([&](Library& library, Comm comm) {
    if (sends()) {
      library.send(comm, exchange.data.data, exchange.bytes(), 1, stream);
    } else {
      library.recv(comm, exchange.data.data, exchange.bytes(), 0, stream);
    }
  });
}

void Direction::connect() {
  {
    MutexLock lock(mutex_);
    if (communicator_ || own_stream_) return;
  }
  if (is_copy()) {
    const device::Stream made = options_.nccl->devices()->new_stream(options_.device);
    MutexLock lock(mutex_);
    own_stream_ = made;
    return;
  }
  const Communicator::Spec spec{meet(), options_.device, sends() ? 0 : 1, 2};
  auto made = Communicator::make(options_.nccl, spec, [this] { check(); });
  MutexLock lock(mutex_);
  if (failure_) {
    made->abort();
    throw *failure_;
  }
  communicator_ = std::move(made);
}

// Who sends says by which id they meet.
UniqueId Direction::meet() {
  const auto id = std::make_shared<UniqueId>();
  const Block block{id->data(), id->size()};
  if (sends()) *id = options_.nccl->make_unique_id();
  const Message message = letter(kMeetTag, DType::UINT8);
  const Future<int> met =
      sends() ? options_.control->send(message, block) : options_.control->recv(message, block);
  met.on_ready([id] {});  // which may be written until then
  while (!met.wait_until(Deadline::after(kBetweenChecks))) check();
  met.value();
  return *id;
}

void Direction::check() const {
  MutexLock lock(mutex_);
  if (failure_) throw *failure_;
}

bool Direction::is_busy() const {
  MutexLock lock(mutex_);
  return is_busy_locked();
}

// The device and NCCL are asked without the lock: they may block.
bool Direction::look() {
  while (end_first()) {
  }
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mutex_);
    if (failure_) return false;
    communicator = communicator_;
  }
  std::optional<Error> why;
  try {
    if (communicator) communicator->check();
    MutexLock lock(mutex_);
    why = late_locked();
    if (!why) {
      if (!lost_) return is_busy_locked();
      if (is_busy_locked() && !grace_.expired()) return true;
    }
  } catch (const Error& error) {
    why = error;
  }
  if (why) {
    fail_and_tell(*why);
    return false;
  }
  std::optional<Error> lost;
  {
    MutexLock lock(mutex_);
    lost = lost_;
  }
  if (end_all(*lost) == Ended::kAtWork) options_.on_failed(*lost);
  return false;
}

// Whether the first has ended well.
bool Direction::end_first() {
  SharedEvent done;
  {
    MutexLock lock(mutex_);
    if (under_way_.empty() || !under_way_.front().done) return false;
    done = under_way_.front().done;
  }
  try {
    if (!options_.nccl->devices()->has_come(done.get())) return false;
  } catch (const Error& error) {  // the device has failed
    fail_and_tell(error);
    return false;
  }
  std::optional<Launch> ended;
  {
    MutexLock lock(mutex_);
    // Another thread may have been quicker.
    if (under_way_.empty() || under_way_.front().done != done) return true;
    ended = std::move(under_way_.front());
    under_way_.pop_front();
  }
  ended->job.memory = {};
  ended->state->set_value(options_.peer);
  return true;
}

Error Direction::late(const Exchange& exchange, const std::string& what) const {
  const std::string own = options_.control->name_of(options_.rank);
  return Error(Code::kTimeout,
               own + " gave up after " + farspan::describe(Clock::now() - exchange.called) + ": " +
                   name_of_peer() + (sends() ? " receives it" : " sends it") + ", and " + what)
      .worker(own)
      .advice(
          "look at what is before it on this rank's streams and on the other's, or give it "
          "more time");
}

std::optional<Error> Direction::late_locked() const {
  for (const Launch& launch : under_way_) {
    const Exchange& exchange = *launch.job.exchange;
    if (!exchange.message.deadline.expired()) continue;
    return late(exchange, launch.done ? "the device had not done it" : "they had not connected")
        .operation(call_of(launch));
  }
  for (const auto& [number, exchange] : unplaced_) {
    if (!exchange->message.deadline.expired()) continue;
    return late(*exchange, "did not go on").operation(exchange->description());
  }
  return std::nullopt;
}

std::string Direction::call_of(const Launch& launch) const {
  return launch.job.exchange->description() + ", message " + std::to_string(launch.number) +
         (sends() ? " to " : " from ") + name_of_peer();
}

Direction::Ended Direction::end_all(const Error& why) noexcept {
  const auto kept = std::make_shared<std::deque<Launch>>();
  std::map<uint64_t, std::shared_ptr<Exchange>> unplaced;
  std::shared_ptr<Communicator> communicator;
  std::optional<device::Stream> own_stream;
  {
    MutexLock lock(mutex_);
    if (failure_) return Ended::kBefore;
    failure_ = why;
    kept->swap(under_way_);
    unplaced.swap(unplaced_);
    communicator = communicator_;
    own_stream = own_stream_;
  }
  const auto ended = *kept;
  if (!kept->empty() && communicator) communicator->abort(kept);
  if (!kept->empty() && own_stream) hold(*own_stream, kept);
  for (const auto& [number, exchange] : unplaced) exchange->fail(why);
  bool was_at_work = false;
  for (const Launch& launch : ended) {
    if (launch.done) {
      was_at_work = true;
      Error error = why;
      if (error.operation().empty()) error.operation(call_of(launch));
      launch.state->set_error(std::move(error));
    } else {
      launch.job.exchange->set_error(why);
      if (launch.job.from) launch.job.from->set_error(why);
    }
  }
  if (was_at_work) return Ended::kAtWork;
  return ended.empty() ? Ended::kIdle : Ended::kBegun;
}

// With the direction, whose stream it is.
void Direction::hold(device::Stream stream, std::shared_ptr<const void> memory) noexcept {
  using Held = std::pair<std::shared_ptr<Direction>, std::shared_ptr<const void>>;
  hold_until_done(options_.nccl->devices(), stream,
                  std::make_shared<const Held>(shared_from_this(), std::move(memory)));
}

void Direction::fail_and_tell(const Error& why) {
  if (end_all(why) != Ended::kBefore) options_.on_failed(why);
}

bool Direction::fail(const Error& why) noexcept {
  const Ended ended = end_all(why);
  return ended == Ended::kBegun || ended == Ended::kAtWork;
}

void Direction::stop() noexcept {
  lane_->stop();
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mutex_);
    communicator = communicator_;
  }
  if (communicator) communicator->end();
}

}  // namespace farspan::dist::nccl
