#include <farspan/optim/room.h>

#include <algorithm>
#include <cstring>
#include <span>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/call/register.h>
#include <farspan/rpc/rpc.h>

namespace farspan::optim {
namespace {

constexpr int kGateKeeper = 0;  // the rank of the worker that holds the job's StepGate

OptimRoom& here() { return *OptimRoom::of(current_worker()); }

// What rank 0 is asked, as functions. The gate answers in time for the caller to hear why.
Future<uint64_t> gate_enter(uint64_t context) {
  const agent::CallContext& call = agent::current_call();
  return here().on_enter(call.from, OptimRoom::ContextId(context), call.deadline);
}
void gate_adopt(uint64_t context) {
  here().on_adopt(agent::current_call().from, OptimRoom::ContextId(context));
}
Future<uint64_t> gate_begin_step(uint64_t key, uint64_t context,
                                 const std::vector<int64_t>& owners) {
  const agent::CallContext& call = agent::current_call();
  return here().on_begin(call.from, OptimRoom::StepKey(key), OptimRoom::ContextId(context), owners,
                         call.deadline);
}

FARSPAN_REGISTER_AS("farspan::optim::gate_enter", gate_enter);
FARSPAN_REGISTER_AS("farspan::optim::gate_adopt", gate_adopt);
FARSPAN_REGISTER_AS("farspan::optim::gate_begin_step", gate_begin_step);

uint64_t number(OptimRoom::ContextId context) { return static_cast<uint64_t>(context); }

// How many of those of one worker that overtook what they end are remembered: as many as may be
// under way.
constexpr size_t kOvertaken = 4096;

// Runs `then` when a request has been answered, or never will be.
class AfterAnswer final : public agent::ReplyHandler {
 public:
  explicit AfterAnswer(std::function<void()> then) : then_(std::move(then)) {}
  void on_reply(wire::InFrame&&) noexcept override { then_(); }
  void on_error(const Error&) noexcept override { then_(); }

 private:
  const std::function<void()> then_;
};

}  // namespace

void OptimRoom::install(Worker& worker) {
  std::shared_ptr<OptimRoom> room(new OptimRoom(worker));
  worker.put_room(RoomId::kOptim, room);
  dist_autograd::AutogradRoom::of(worker)->set_gate(room);
  room->listen();
}

std::shared_ptr<OptimRoom> OptimRoom::of(Worker& worker) {
  if (auto* room = static_cast<OptimRoom*>(worker.room(RoomId::kOptim))) {
    return room->shared_from_this();
  }
  throw Error(Code::kInvalidArgument,
              "worker '" + worker.name() + "' has no distributed optimizers")
      .advice("make workers with init_rpc");
}

OptimRoom::OptimRoom(Worker& worker)
    : worker_(worker.weak_from_this()),
      messenger_(worker.share_messenger()),
      gate_([messenger = worker.share_messenger()](int rank) {
        return messenger->worker_name(rank);
      }) {}

// What ends something is told in frames that are served while they are read: no deadline of the
// call that happens to be served, and no lack of threads, may keep it back. Those to rank 0 have no
// answer; those that have one are its fences.
void OptimRoom::listen() {
  messenger_->handle(wire::Kind::kOptimizer, agent::Messenger::Run::kInline,
                     [weak = weak_from_this()](agent::Request request) {
                       Farewell farewell;
                       const auto room = weak.lock();
                       if (!room) return;
                       if (!request.one_way()) return room->on_fence(std::move(request));
                       if (request.frame().meta.size() != sizeof farewell) return;
                       std::memcpy(&farewell, request.frame().meta.data(), sizeof farewell);
                       room->on_farewell(request.from(), farewell);
                     });
  if (messenger_->self().rank != kGateKeeper) return;
  messenger_->on_worker_lost([weak = weak_from_this()](int rank, const Error& why) {
    const auto room = weak.lock();
    if (!room) return;
    room->messenger_->run([room, rank, why] { room->lose_worker(rank, why); });
  });
}

std::shared_ptr<Worker> OptimRoom::worker() const {
  if (auto worker = worker_.lock()) return worker;
  throw Error(Code::kShutdown, "the worker is gone").operation("consistent step");
}

bool OptimRoom::wait(FutureCore& answer, Deadline deadline) const {
  const int from = messenger_->self().rank == kGateKeeper ? -1 : kGateKeeper;
  return answer.ready() || messenger_->wait(answer, deadline, from);
}

// A request that failed, and that rank 0 may serve yet: what it has served carries its trail.
bool OptimRoom::may_be_under_way(const Future<uint64_t>& asked) const {
  return messenger_->self().rank != kGateKeeper && asked.has_error() &&
         asked.error().trail().empty();
}

// --- As an owner.

void OptimRoom::guard_parameters() {
  Promise<void> done;
  Future<void> guarded;
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = guards_.fetch_add(1) == 0;
    if (first) guarded_ = done.future();
    guarded = guarded_;
  }
  if (first) {
    try {
      adopt_contexts();
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  }
  wait(*guarded.state());
  try {
    guarded.value();
  } catch (const Error&) {
    unguard_parameters();
    throw;
  }
}

// Those that are here already may have used the parameters: they count as inside.
void OptimRoom::adopt_contexts() {
  const auto here = worker();
  const auto autograd = dist_autograd::AutogradRoom::of(*here);
  const dist_autograd::OutsideContext outside;
  for (const ContextId context : autograd->contexts()) {
    {
      MutexLock lock(mutex_);
      if (!entered_.emplace(context, Entry{make_ready_future<uint64_t>(0)}).second) continue;
    }
    if (here->rank() == kGateKeeper) {
      on_adopt(here->rank(), context);
    } else {
      here->rpc_sync(kGateKeeper, gate_adopt, number(context));
    }
    if (!autograd->find(context)) released(context);
  }
}

void OptimRoom::unguard_parameters() noexcept { guards_.fetch_sub(1); }

void OptimRoom::ask_to_enter(Worker& here, ContextId context, const Promise<uint64_t>& answer) {
  const dist_autograd::OutsideContext outside;
  try {
    const auto asked = here.rank() == kGateKeeper
                           ? on_enter(here.rank(), context, here.deadline_for({}))
                           : here.rpc_async(kGateKeeper, gate_enter, number(context));
    asked.on_ready([asked, answer] { answer.take(asked); });
  } catch (...) {
    answer.set_exception(std::current_exception());
  }
}

// One asks for all calls of a context that wait here, each of them until its own deadline. When the
// one who asked has had too little time, another asks again.
bool OptimRoom::enter(ContextId context) {
  if (guards_.load() == 0) return false;
  const auto here = worker();
  const Deadline deadline = here->deadline_for({});
  while (true) {
    Promise<uint64_t> answer;
    Future<uint64_t> entry;
    Deadline until;
    bool ask = false;
    {
      MutexLock lock(mutex_);
      Entry& known = entered_[context];
      known.in_doubt |= known.asked.valid() && may_be_under_way(known.asked);
      ask = !known.asked.valid() || known.asked.has_error();
      if (ask) {
        known.asked = answer.future();
        known.until = deadline;
      }
      entry = known.asked;
      until = known.until;
    }
    if (ask) ask_to_enter(*here, context, answer);
    // What was asked here ends by itself, and says why.
    if (!wait(*entry.state(), ask ? Deadline::never() : deadline)) {
      throw Error(Code::kTimeout, "waited behind another call of the same context")
          .operation("consistent step");
    }
    if (!entry.has_error()) return ask;
    const bool had_less_time = entry.error().code() == Code::kTimeout && until.at() < deadline.at();
    if (ask || !had_less_time) entry.value();
  }
}

void OptimRoom::released(ContextId context) noexcept {
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entered_.find(context);
    if (found == entered_.end()) return;
    entry = std::move(found->second);
    entered_.erase(found);
  }
  // After the answer, or leaving might overtake entering; without one, it still may.
  entry.asked.on_ready([weak = weak_from_this(), context, entry] {
    const auto room = weak.lock();
    if (!room) return;
    const bool in_doubt = entry.in_doubt || room->may_be_under_way(entry.asked);
    room->tell({in_doubt ? Farewell::kGaveUp : Farewell::kLeft, number(context)});
  });
}

void OptimRoom::begin_part(uint64_t number) {
  MutexLock lock(mutex_);
  if (number <= last_step_) {
    throw Error(Code::kCancelled, "the step is over: its trainer has given it up, or was lost")
        .operation("consistent step");
  }
  last_step_ = number;
  applying_.try_emplace(number);
}

void OptimRoom::end_part(uint64_t number) noexcept {
  std::map<uint64_t, Promise<void>>::node_type part;
  {
    MutexLock lock(mutex_);
    part = applying_.extract(number);
  }
  if (part) part.mapped().set_value();
}

Future<void> OptimRoom::fence_step(uint64_t number) {
  MutexLock lock(mutex_);
  last_step_ = std::max(last_step_, number);
  const auto part = applying_.find(number);
  return part == applying_.end() ? make_ready_future() : part->second.future();
}

void OptimRoom::on_fence(agent::Request request) {
  uint64_t number = 0;
  if (request.frame().meta.size() != sizeof number) {
    return request.fail(Error(Code::kCorrupt, "no number of a step"));
  }
  std::memcpy(&number, request.frame().meta.data(), sizeof number);
  const auto asked = std::make_shared<agent::Request>(std::move(request));
  fence_step(number).on_ready([asked] { asked->reply({}); });
}

// --- As a trainer.

uint64_t OptimRoom::begin_step(StepKey key, ContextId context, const std::vector<int64_t>& owners,
                               const CallOptions& options) {
  const auto here = worker();
  if (here->rank() != kGateKeeper) {
    return here->rpc_sync(kGateKeeper, options, gate_begin_step, static_cast<uint64_t>(key),
                          number(context), owners);
  }
  const auto turn = on_begin(here->rank(), key, context, owners, here->deadline_for(options));
  wait(*turn.state());
  return turn.value();
}

void OptimRoom::end_step(StepKey key) noexcept {
  tell({Farewell::kStepped, static_cast<uint64_t>(key)});
}

void OptimRoom::abandon_step(StepKey key) noexcept {
  tell({Farewell::kAbandoned, static_cast<uint64_t>(key)});
}

void OptimRoom::tell(const Farewell& farewell) noexcept {
  if (messenger_->self().rank == kGateKeeper) return on_farewell(kGateKeeper, farewell);
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kOptimizer;
  frame.meta = std::as_bytes(std::span(&farewell, 1));
  messenger_->post(kGateKeeper, frame);
}

// --- As the keeper of the gate.

template <class Fn>
void OptimRoom::drive(Fn&& fn) {
  GateActions actions;
  std::vector<std::pair<Promise<uint64_t>, std::variant<uint64_t, Error>>> answers;
  std::vector<agent::TimerId> timers;
  std::vector<Fence> fences;
  {
    MutexLock lock(gate_mutex_);
    fn(actions);
    const auto take = [&](Ticket ticket) FARSPAN_REQUIRES(gate_mutex_) {
      auto waiting = waiting_.extract(ticket);
      if (!waiting) return;
      if (waiting.mapped().timer) timers.push_back(waiting.mapped().timer);
      answers.emplace_back(std::move(waiting.mapped().answer), uint64_t{0});
    };
    for (auto& action : actions) {
      const size_t before = answers.size();
      if (const auto* granted = std::get_if<Granted>(&action)) {
        take(granted->ticket);
        if (answers.size() > before) answers.back().second = granted->number;
      } else if (const auto* refused = std::get_if<Refused>(&action)) {
        take(refused->ticket);
        if (answers.size() > before) answers.back().second = refused->why;
      } else {
        fences.push_back(std::get<Fence>(action));
      }
    }
  }
  for (const Fence& fence : fences) send(fence);
  for (const agent::TimerId timer : timers) messenger_->cancel(timer);
  for (auto& [promise, answer] : answers) {
    if (const auto* turn = std::get_if<uint64_t>(&answer)) {
      promise.set_value(*turn);
    } else {
      promise.set_error(std::get<Error>(answer));
    }
  }
}

template <class Request>
Future<uint64_t> OptimRoom::ask(Request&& request, Deadline deadline) {
  const Promise<uint64_t> promise;
  const auto answer = promise.future();
  Ticket ticket = 0;
  drive([&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
    if (ended_) {
      throw Error(Code::kShutdown, "this worker has been shut down").operation("consistent step");
    }
    ticket = request(actions);
    waiting_.emplace(ticket, Waiting{promise});
  });
  if (answer.ready() || deadline.is_never()) return answer;
  // A little before the caller gives up by himself, who could not say why.
  const auto now = messenger_->now();
  const auto left = deadline.remaining(now);
  const auto at = now + left - std::min<Clock::duration>(left / 8, Millis(250));
  const auto timer = messenger_->call_at(at, [weak = weak_from_this(), ticket] {
    if (const auto room = weak.lock()) {
      room->messenger_->run([room, ticket] { room->expire(ticket); });
    }
  });
  bool late = true;
  {
    MutexLock lock(gate_mutex_);
    const auto waiting = waiting_.find(ticket);
    if (waiting != waiting_.end()) {
      waiting->second.timer = timer;
      late = false;
    }
  }
  if (late) messenger_->cancel(timer);
  return answer;
}

void OptimRoom::lose_worker(int rank, const Error& why) {
  drive([&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
    std::erase_if(steps_, [&](const auto& step) { return step.first.first == rank; });
    overtaken_.erase(rank);
    gate_.lose_worker(rank, why, actions);
  });
}

void OptimRoom::end_part_of(const Fence& fence) {
  drive([&](GateActions& actions)
            FARSPAN_REQUIRES(gate_mutex_) { gate_.part_ended(fence.step, fence.owner, actions); });
}

void OptimRoom::expire(Ticket ticket) {
  drive([&](GateActions& actions)
            FARSPAN_REQUIRES(gate_mutex_) { gate_.expire(ticket, messenger_->now(), actions); });
}

// A request may come to run when its caller has been lost, or has given it up already. It must not
// begin then: nobody would end it.
void OptimRoom::check_wanted(int from, const Farewell& end) {
  if (agent::current_call().caller_gone()) {
    throw Error(Code::kDisconnected, "the caller was lost").operation("consistent step");
  }
  const auto ends = overtaken_.find(from);
  if (ends == overtaken_.end() || !ends->second.contains(end)) return;
  // Of a step there is one request, of a context there may be more.
  if (end.what == Farewell::kStepped) ends->second.erase(end);
  throw Error(Code::kCancelled, "the caller has given up").operation("consistent step");
}

Future<uint64_t> OptimRoom::on_enter(int owner, ContextId context, Deadline deadline) {
  return ask(
      [&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
        check_wanted(owner, {Farewell::kGaveUp, number(context)});
        return gate_.enter(context, owner, messenger_->now(), actions);
      },
      deadline);
}

void OptimRoom::on_adopt(int owner, ContextId context) {
  MutexLock lock(gate_mutex_);
  check_wanted(owner, {Farewell::kGaveUp, number(context)});
  gate_.adopt(context, owner, messenger_->now());
}

void OptimRoom::on_farewell(int from, const Farewell& farewell) {
  if (farewell.what == Farewell::kLeft || farewell.what == Farewell::kGaveUp) {
    drive([&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
      gate_.leave(ContextId(farewell.id), from, actions);
      if (farewell.what == Farewell::kGaveUp) remember_overtaken(from, farewell);
    });
  } else if (farewell.what == Farewell::kStepped || farewell.what == Farewell::kAbandoned) {
    on_step_end(from, farewell);
  }
}

void OptimRoom::on_step_end(int from, const Farewell& farewell) {
  const bool abandoned = farewell.what == Farewell::kAbandoned;
  std::map<Ticket, Waiting>::node_type given_up;  // nobody listens to its promise any more
  drive([&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
    const auto found = steps_.find({from, StepKey(farewell.id)});
    if (found == steps_.end()) {
      // One that has had its turn is abandoned already, if it is not known: with a lost trainer's.
      if (!abandoned) remember_overtaken(from, farewell);
      return;
    }
    given_up = waiting_.extract(found->second);
    abandoned ? gate_.abandon_step(found->second, actions)
              : gate_.step_done(found->second, actions);
    steps_.erase(found);
  });
  if (given_up && given_up.mapped().timer) messenger_->cancel(given_up.mapped().timer);
}

// The request has no deadline, so that an owner that stands still is noticed (rpc/agent/heartbeat).
void OptimRoom::send(const Fence& fence) {
  const auto ended = [weak = weak_from_this(), fence] {
    const auto room = weak.lock();
    if (!room) return;
    room->end_part_of(fence);
  };
  if (fence.owner == messenger_->self().rank) return fence_step(fence.number).on_ready(ended);
  // Not on the reading thread: a request may have to wait until there is room for it on the line.
  messenger_->run([messenger = messenger_, fence, ended] {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kOptimizer;
    frame.meta = std::as_bytes(std::span(&fence.number, 1));
    messenger->call(fence.owner, frame, Deadline::never(), std::make_shared<AfterAnswer>(ended),
                    /*will_wait=*/false);
  });
}

void OptimRoom::remember_overtaken(int from, const Farewell& farewell) {
  overtaken_.try_emplace(from, kOvertaken).first->second.insert(farewell);
}

Future<uint64_t> OptimRoom::on_begin(int trainer, StepKey key, ContextId context,
                                     const std::vector<int64_t>& owners, Deadline deadline) {
  return ask(
      [&](GateActions& actions) FARSPAN_REQUIRES(gate_mutex_) {
        check_wanted(trainer, {Farewell::kStepped, static_cast<uint64_t>(key)});
        const Ticket ticket = gate_.request_step(context, trainer, {owners.begin(), owners.end()},
                                                 messenger_->now(), actions);
        steps_[{trainer, key}] = ticket;
        return ticket;
      },
      deadline);
}

GateCounters OptimRoom::counters() const {
  MutexLock lock(gate_mutex_);
  return gate_.counters();
}

size_t OptimRoom::ends_remembered() const {
  MutexLock lock(gate_mutex_);
  size_t all = 0;
  for (const auto& [from, ends] : overtaken_) all += ends.size();
  return all;
}

void OptimRoom::stop() {
  std::map<Ticket, Waiting> waiting;  // their promises end with kCancelled, outside the lock
  MutexLock lock(gate_mutex_);
  ended_ = true;
  waiting.swap(waiting_);
}

}  // namespace farspan::optim
