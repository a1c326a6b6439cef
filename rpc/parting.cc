#include <farspan/rpc/parting.h>

#include <cstring>
#include <utility>

namespace farspan {
namespace {

Error stopped() {
  return Error(Code::kShutdown, "another thread has shut this worker down").operation("shutdown");
}

// How often a worker looks whether its own calls have ended.
constexpr Millis kLookAgain{2};

std::string names_of(const std::vector<int>& ranks, const std::vector<WorkerInfo>& workers) {
  std::string names;
  for (const int rank : ranks) {
    names += (names.empty() ? "'" : ", '") + workers[static_cast<size_t>(rank)].name + "'";
  }
  return names;
}

}  // namespace

Parting::Parting(std::shared_ptr<agent::Messenger> messenger)
    : messenger_(std::move(messenger)),
      meeting_(messenger_->self().rank, static_cast<int>(messenger_->workers().size())) {}

template <class Fn>
void Parting::step(Fn&& fn) {
  agent::Meeting::Action action;
  {
    MutexLock lock(mutex_);
    action = fn(meeting_);
  }
  perform(std::move(action));
}

void Parting::listen() {
  messenger_->handle(wire::Kind::kShutdown, agent::Messenger::Run::kInline,
                     [weak = weak_from_this()](agent::Request request) {
                       const auto self = weak.lock();
                       agent::MeetingMessage message;
                       if (!self || request.frame().meta.size() != sizeof message) return;
                       std::memcpy(&message, request.frame().meta.data(), sizeof message);
                       self->step([&](agent::Meeting& meeting) {
                         return meeting.on_message(request.from(), message);
                       });
                     });
  messenger_->on_worker_lost([weak = weak_from_this()](int rank, const Error& why) {
    if (why.code() == Code::kShutdown) return;  // it was told before us that the meeting is over
    if (const auto self = weak.lock()) {
      self->step([&](agent::Meeting& meeting) { return meeting.on_lost(rank); });
    }
  });
}

void Parting::meet(Deadline deadline) {
  const TimePoint begun = messenger_->now();
  Future<void> over;
  {
    MutexLock lock(mutex_);
    if (stopped_) throw stopped();
    over_ = Promise<void>();
    over = over_.future();
    ++phase_;
  }
  step([&](agent::Meeting& meeting) FARSPAN_REQUIRES(mutex_) { return meeting.enter(phase_); });
  if (messenger_->wait(*over.state(), deadline, -1)) return over.value();
  std::vector<int> missing;
  if (messenger_->self().rank == 0) {
    MutexLock lock(mutex_);
    missing = meeting_.missing();
  }
  throw Error(Code::kTimeout, missing.empty()
                                  ? "not every worker is done"
                                  : "not done: " + names_of(missing, messenger_->workers()))
      .operation("shutdown")
      .elapsed(messenger_->now() - begun)
      .advice(
          "every worker must call shutdown(); look at those that did not, or raise "
          "WorkerOptions::shutdown_timeout");
}

void Parting::stop() {
  Promise<void> over;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    over = over_;
  }
  over.set_error(stopped());
}

void Parting::perform(agent::Meeting::Action action) {
  for (const auto& send : action.sends) {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kShutdown;
    frame.meta = std::as_bytes(std::span(&send.message, 1));
    messenger_->post(send.to, frame);
  }
  if (action.report_when_quiet) action.pause ? look_again() : report_when_quiet();
  if (!action.done && !action.failure) return;
  Promise<void> over;
  {
    MutexLock lock(mutex_);
    over = over_;
  }
  if (action.failure) {
    over.set_error(action.failure->operation("shutdown"));
  } else {
    over.set_value();
  }
}

void Parting::report_when_quiet() {
  const agent::MessengerCounters counters = messenger_->counters();
  if (counters.in_flight == 0) {
    step([&](agent::Meeting& meeting) {
      return meeting.quiet(counters.requests_sent, counters.requests_received);
    });
    return;
  }
  look_again();
}

void Parting::look_again() {
  messenger_->call_at(messenger_->now() + kLookAgain, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->report_when_quiet();
  });
}

}  // namespace farspan
