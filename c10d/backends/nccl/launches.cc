#include <farspan/c10d/backends/nccl/launches.h>

#include <pthread.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <farspan/c10d/backends/late.h>

namespace farspan::dist::nccl {
namespace {

constexpr std::chrono::milliseconds kLate{500};  // then it is asked who is gone
constexpr std::chrono::seconds kGrace{1};        // for what the others have done their part of
// For the ranks to say among themselves who is late: that tells more than this one can. One does
// not answer, as a rule, and others may be slow.
constexpr Millis kToAgree = 3 * kToFindLate;
// As the first sequence that ends: none, but what is under way at the end of the grace.
constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

std::string call_of(const Signature& signature) {
  return describe(signature) + ", call " + std::to_string(signature.sequence);
}

}  // namespace

std::shared_ptr<Launches> Launches::make(Options options) {
  std::shared_ptr<Launches> made(new Launches(std::move(options)));
  MutexLock lock(made->mutex_);
  made->thread_ = start_watching(std::weak_ptr<Launches>(made), made->options_.devices,
                                 made->options_.communicator->stream().device);
  return made;
}

// Of its own thread, when whoever is told of an end there was the last to hold the group.
Launches::~Launches() {
  if (thread_.joinable()) thread_.detach();
  for (const device::Event event : free_events_) options_.devices->end_event(event);
  for (const device::Event event : lost_events_) options_.devices->end_event(event);
}

Future<int> Launches::begin(const Signature& signature, Deadline deadline, Future<int> agreed) {
  const auto state = std::make_shared<State>(weak_from_this());
  MutexLock lock(mutex_);
  if (failure_) throw failure_->why;
  under_way_.push_back({signature, deadline, Clock::now(), std::move(agreed), state});
  changed_.notify_one();
  return Future<int>(state);
}

void Launches::given() {
  device::Event event = nullptr;
  {
    MutexLock lock(mutex_);
    if (failure_) throw failure_->why;
    if (!free_events_.empty()) {
      event = free_events_.back();
      free_events_.pop_back();
    }
  }
  const device::Stream stream = options_.communicator->stream();
  if (!event) event = options_.devices->new_event(stream.device, device::Reach::kThisProcess);
  options_.devices->record(event, stream);
  MutexLock lock(mutex_);
  if (under_way_.empty() || under_way_.back().event) {  // it has failed meanwhile
    lost_events_.push_back(event);
  } else {
    under_way_.back().event = event;
  }
}

std::optional<Error> Launches::failure() const {
  MutexLock lock(mutex_);
  if (!failure_ || failure_->since == kNone) return std::nullopt;
  return failure_->why;
}

// False: it has been stopped.
bool Launches::wait_and_look() {
  bool tells = false;
  {
    MutexLock lock(mutex_);
    while (!stopped_ && under_way_.empty() && (!failure_ || is_aborted_)) changed_.wait(mutex_);
    if (!stopped_) changed_.wait_until(mutex_, Deadline::after(kBetweenLooks));
    if (stopped_) return false;
    tells = is_late_locked() && !std::exchange(has_told_late_, true);
  }
  if (tells) options_.on_late();
  look();
  return true;
}

bool Launches::is_late_locked() const {
  return !under_way_.empty() && Clock::now() - under_way_.front().called > kLate;
}

// The device and NCCL are asked without the lock: they may block.
void Launches::look() {
  while (end_first()) {
  }
  see_communicator();
  std::vector<Ended> ended;
  std::optional<Failure> failed;
  {
    MutexLock lock(mutex_);
    see_launches_locked();
    if (failure_) end_in_error_locked(ended);
    if (failure_ && failure_->since != kNone && !std::exchange(has_told_failure_, true)) {
      failed = failure_;
    }
  }
  if (failed) options_.on_failed(failed->why, failed->since);
  for (const Ended& one : ended) one.state->set_error(*one.why);
}

// Absent: none that may have ended.
std::optional<Launches::Launch> Launches::first_to_look_at() const {
  MutexLock lock(mutex_);
  if (under_way_.empty()) return std::nullopt;
  const Launch& first = under_way_.front();
  // What the device has done without agreement is of no use.
  if (!first.event || !first.agreed.ready() || first.agreed.has_error()) return std::nullopt;
  return first;
}

// Whether the first has ended well.
bool Launches::end_first() {
  const std::optional<Launch> first = first_to_look_at();
  if (!first) return false;
  try {
    if (!options_.devices->has_come(first->event)) return false;
  } catch (const Error& error) {  // the device has failed
    MutexLock lock(mutex_);
    note_locked({error, 0, Deadline(Clock::now())});
    return false;
  }
  {
    MutexLock lock(mutex_);
    // Another thread may have been quicker.
    if (under_way_.empty() || under_way_.front().state != first->state) return true;
    free_events_.push_back(first->event);
    under_way_.pop_front();
  }
  first->state->set_value(-1);
  return true;
}

void Launches::see_communicator() {
  try {
    options_.communicator->check();
  } catch (const Error& error) {
    MutexLock lock(mutex_);
    note_locked({error, 0, Deadline(Clock::now())});
  }
}

void Launches::see_launches_locked() {
  for (const Launch& launch : under_way_) {
    const uint64_t sequence = launch.signature.sequence;
    if (launch.agreed.has_error()) {
      // What is before may need a rank that is gone.
      const Error& why = launch.agreed.error();
      const bool is_gone = why.code() == Code::kDisconnected;
      return note_locked({why, sequence, is_gone ? Deadline::after(kGrace) : Deadline::never()});
    }
    if (launch.deadline.is_never()) continue;
    const auto more =
        launch.agreed.ready() ? TimePoint::duration::zero() : TimePoint::duration(kToAgree);
    if (Clock::now() < launch.deadline.at() + more) continue;
    return note_locked({late_error_locked(launch), sequence, Deadline::never()});
  }
}

// The failure of the earliest collective counts.
void Launches::note_locked(const Failure& failure) {
  if (is_aborted_) return;
  if (!failure_) {
    failure_ = failure;
  } else {
    const Deadline latest = earlier(failure.latest, failure_->latest);
    if (failure.since < failure_->since) failure_ = failure;
    failure_->latest = latest;
  }
  changed_.notify_one();
}

void Launches::end_in_error_locked(std::vector<Ended>& ended) {
  // Those that it concerns, at once; the ones before may still end well.
  while (!under_way_.empty() && under_way_.back().signature.sequence >= failure_->since) {
    Launch& last = under_way_.back();
    if (last.event) lost_events_.push_back(last.event);
    ended.push_back({std::move(last.state), failure_->why});
    under_way_.pop_back();
  }
  std::reverse(ended.begin(), ended.end());
  if (is_aborted_) return;
  if (under_way_.empty() && failure_->since == kNone) {
    failure_.reset();  // whoever is gone was not needed: the next call finds that out
  } else if (under_way_.empty() || failure_->latest.expired()) {
    end_all_locked(failure_->why, ended);
  }
}

void Launches::end_all_locked(const Error& why, std::vector<Ended>& ended) {
  is_aborted_ = true;
  const uint64_t first = under_way_.empty() ? kNone : under_way_.front().signature.sequence;
  if (!failure_) failure_ = Failure{why, first, {}};
  failure_->since = std::min(failure_->since, first);
  // First, or the device would never come to the events.
  options_.communicator->abort();
  for (Launch& launch : under_way_) {
    if (launch.event) lost_events_.push_back(launch.event);
    ended.push_back({std::move(launch.state), why});
  }
  under_way_.clear();
}

Error Launches::late_error_locked(const Launch& launch) const {
  const std::string after = farspan::describe(Clock::now() - launch.called);
  const bool agreed = launch.agreed.ready();
  Error error(Code::kTimeout,
              options_.name + " gave up after " + after +
                  (agreed ? ": all ranks had called it, and its device had not done it"
                          : ": not all ranks had called it"));
  error.worker(options_.name).operation(call_of(launch.signature));
  return error.advice(
      agreed ? "look at what is before it on this rank's streams and on the others', or give it "
               "more time"
             : "look at what the other ranks do, or give the operation more time");
}

void Launches::finish(Deadline deadline) {
  for (;;) {  // the last may end before the others, in error
    std::shared_ptr<State> last;
    {
      MutexLock lock(mutex_);
      if (under_way_.empty()) return;
      last = under_way_.back().state;
    }
    if (!last->wait(deadline)) return;
  }
}

void Launches::fail(const Error& why, uint64_t since, Deadline latest) {
  MutexLock lock(mutex_);
  note_locked({why, since, latest});
}

void Launches::lose_rank(const Error& why) { fail(why, kNone, Deadline::after(kGrace)); }

std::optional<uint64_t> Launches::stop(const Error& why) noexcept {
  std::thread thread;
  std::vector<Ended> ended;
  std::optional<uint64_t> first;
  bool is_idle = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return std::nullopt;
    has_told_failure_ = true;  // who looks now keeps it to himself: it is this rank's own affair
    changed_.notify_one();
    if (!under_way_.empty()) first = under_way_.front().signature.sequence;
    is_idle = under_way_.empty() && !is_aborted_;
    if (is_idle) {
      is_aborted_ = true;
      failure_ = Failure{why, 0, {}};
    } else if (!is_aborted_) {
      failure_.reset();
      end_all_locked(why, ended);
    }
    if (thread_.get_id() != std::this_thread::get_id()) thread.swap(thread_);
  }
  for (const Ended& one : ended) one.state->set_error(*one.why);
  if (thread.joinable()) thread.join();
  if (is_idle) options_.communicator->end();
  return first;
}

}  // namespace farspan::dist::nccl
