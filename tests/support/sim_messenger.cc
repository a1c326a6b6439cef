#include "support/sim_messenger.h"

#include <algorithm>
#include <utility>

#include <farspan/c10d/net/reactor.h>

#include "support/sim_network.h"

namespace farspan::testing {

using agent::CallContext;
using agent::PendingCalls;
using agent::Request;

namespace {

Error too_late() {
  return Error(Code::kTimeout, "its deadline passed before it could be run")
      .advice("the worker is busy: call less at once, or raise the timeout");
}

}  // namespace

// The way back of one request: the line that it came on, if that lasts.
class SimMessenger::Route final : public agent::ReplyRoute {
 public:
  Route(std::weak_ptr<SimMessenger> from, int to, int epoch)
      : from_(std::move(from)), to_(to), epoch_(epoch) {}
  void send_reply(wire::OutFrame& frame) override {
    const auto from = from_.lock();
    if (from && from->alive()) from->network_->send_reply(*from, to_, epoch_, frame);
  }
  bool leads_back() const noexcept override {
    const auto from = from_.lock();
    return from && from->alive() && from->network_->knows_line(from->rank_, to_, epoch_);
  }

 private:
  const std::weak_ptr<SimMessenger> from_;
  const int to_, epoch_;
};

// A call that waits for its answer: its handler, and what people want to know of it.
class SimMessenger::Call final : public agent::ReplyHandler {
 public:
  Call(SimMessenger& owner, std::shared_ptr<agent::ReplyHandler> handler, wire::Kind kind, int to)
      : owner_(owner),
        handler_(std::move(handler)),
        kind_(kind),
        to_(to),
        sent_(owner.now()),
        number_(++owner.last_call_) {
    owner_.waiting_[number_] = this;
  }
  ~Call() override { owner_.waiting_.erase(number_); }

  void on_reply(wire::InFrame&& reply) noexcept override {
    end([&] { handler_->on_reply(std::move(reply)); });
  }
  void on_error(const Error& why) noexcept override {
    end([&] { handler_->on_error(why); });
  }

  bool is_of(const agent::ReplyHandler& handler) const noexcept {
    return handler_.get() == &handler;
  }
  void sent_as(uint64_t id, Deadline deadline) {
    id_ = id;
    endless_ = deadline.is_never();
  }
  std::string describe() const {
    std::string text = std::string(name_of(kind_)) + " " + SimNetwork::number_of(id_) + " of " +
                       owner_.self().name + " to " + owner_.workers_[static_cast<size_t>(to_)].name;
    if (owner_.alive()) text += ", for " + farspan::describe(owner_.now() - sent_);
    return text + (endless_ ? ", without a deadline\n" : "\n");
  }

 private:
  void end(const std::function<void()>& tell) {
    owner_.waiting_.erase(number_);
    owner_.run_as_self(tell);
  }

  SimMessenger& owner_;
  const std::shared_ptr<agent::ReplyHandler> handler_;
  const wire::Kind kind_;
  const int to_;
  const TimePoint sent_;
  const uint64_t number_;
  uint64_t id_ = 0;
  bool endless_ = false;
};

SimMessenger::SimMessenger(SimNetwork& network, int rank, uint64_t life, wire::InstanceId instance)
    : network_(&network),
      workers_(network.workers()),
      rank_(rank),
      life_(life),
      instance_(instance) {}

wire::InstanceId SimMessenger::instance_of(int rank) const {
  if (rank == rank_) return instance_;
  return alive() ? network_->instance_seen(rank_, rank) : wire::InstanceId{};
}

void SimMessenger::handle(wire::Kind kind, Run run, Handler handler) {
  handlers_[static_cast<uint8_t>(kind)] = {run, std::move(handler)};
}

void SimMessenger::call(int to, wire::OutFrame& frame, Deadline deadline,
                        std::shared_ptr<agent::ReplyHandler> handler, bool /*will_wait*/) {
  ++counters_.calls_sent;
  if (frame.header.chain == 0) frame.header.chain = (uint64_t(rank_ + 1) << 48) | ++last_chain_;
  if (!alive()) {
    return handler->on_error(Error(Code::kShutdown, "this worker has been shut down"));
  }
  if (to < 0 || to >= network_->size()) {
    return handler->on_error(
        Error(Code::kInvalidArgument, "there is no worker of rank " + std::to_string(to)));
  }
  const LinePtr line = line_to(to);
  SimScheduler& world = network_->scheduler();
  deadline = Deadline(world.to_virtual(deadline));
  const auto waiting = std::make_shared<Call>(*this, std::move(handler), frame.header.kind, to);
  frame.header.request_id = line->pending.add(waiting, deadline, frame.bytes());
  waiting->sent_as(frame.header.request_id, deadline);
  if (deadline.is_never()) {
    watch_peer(line);
  } else {
    if (line->pending.is_earliest(deadline)) expire_later(line, deadline.at());
    const auto left = std::chrono::ceil<Micros>(deadline.remaining(world.now())).count();
    frame.header.remaining_us = static_cast<uint64_t>(std::max<int64_t>(left, 1));
  }
  ++line->requests_sent;
  send_on(*line, frame);
}

bool SimMessenger::cancel(int to, const agent::ReplyHandler& handler) {
  const auto line = lines_.find(to);
  const auto call =
      std::ranges::find_if(waiting_, [&](const auto& one) { return one.second->is_of(handler); });
  if (!alive() || line == lines_.end() || call == waiting_.end()) return false;
  const auto taken = line->second->pending.take_that_of(*call->second);
  if (!taken.handler) return false;
  taken.handler->on_error(given_up());
  return true;
}

void SimMessenger::post(int to, wire::OutFrame& frame) {
  frame.header.flags |= wire::kOneWay;
  if (!alive() || to < 0 || to >= network_->size()) return;
  const LinePtr line = line_to(to);
  line->requests_sent += frame.header.kind != wire::Kind::kShutdown;
  send_on(*line, frame);
}

SimMessenger::LinePtr SimMessenger::line_to(int peer) {
  LinePtr& line = lines_[peer];
  if (!line) {
    line = std::make_shared<Line>(peer, network_->epoch_seen(rank_, peer),
                                  network_->silence_timeout());
  }
  return line;
}

SimMessenger::Line* SimMessenger::find_line(int peer, int epoch) const {
  const auto found = lines_.find(peer);
  return found != lines_.end() && found->second->epoch == epoch ? found->second.get() : nullptr;
}

void SimMessenger::send_on(Line& line, wire::OutFrame& frame) {
  counters_.bytes_sent += frame.bytes();
  line.traffic.sent += frame.bytes();
  network_->send(*this, line.peer, frame);
}

void SimMessenger::send_sign(int to, wire::Kind kind) {
  wire::OutFrame sign;
  sign.header.kind = kind;
  sign.header.flags = wire::kOneWay;
  send_on(*line_to(to), sign);
}

void SimMessenger::expire_later(const LinePtr& line, TimePoint at) {
  const std::string what = self().name + " gives up calls to " +
                           workers_[static_cast<size_t>(line->peer)].name + " that are due";
  network_->scheduler().at(at, life_, what, [this, weak = std::weak_ptr<Line>(line), at] {
    const LinePtr live = weak.lock();
    if (!live) return;
    Deadline next;
    for (const auto& taken : live->pending.expire(at, now(), next)) {
      taken.handler->on_error(Error(Code::kTimeout, "no answer in time"));
    }
    if (alive() && !next.is_never()) expire_later(live, next.at());
  });
}

std::shared_ptr<const void> SimMessenger::watch(int rank) {
  const auto line = lines_.find(rank);
  if (!alive() || line == lines_.end()) return nullptr;
  ++line->second->watches;
  watch_peer(line->second);
  return {nullptr, [weak = std::weak_ptr<Line>(line->second)](const void*) {
            if (const LinePtr live = weak.lock()) --live->watches;
          }};
}

void SimMessenger::watch_peer(const LinePtr& line) {
  if (!std::exchange(line->watched, true)) act(line, line->heartbeat.begin(now(), line->traffic));
}

// As Connection does; the line is open from the first frame on.
void SimMessenger::act(const LinePtr& line, const agent::Heartbeat::Action& action) {
  const std::string& peer = workers_[static_cast<size_t>(line->peer)].name;
  if (action.lost) {
    return network_->give_up(rank_, line->peer,
                             "nothing was heard from it for " +
                                 farspan::describe(line->heartbeat.timeout()) +
                                 ", and it does not answer pings");
  }
  if (action.look_at) {
    const auto look = [this, weak = std::weak_ptr<Line>(line)] {
      const LinePtr live = weak.lock();
      if (!live) return;
      live->watched = live->pending.has_endless() || live->watches > 0;
      act(live, live->heartbeat.look(now(), live->traffic, live->watched));
    };
    network_->scheduler().at(*action.look_at, life_,
                             self().name + " looks for signs of life of " + peer, look);
  }
  if (action.ping) send_sign(line->peer, wire::Kind::kPing);
}

bool SimMessenger::wait(FutureCore& future, Deadline deadline, int /*from*/,
                        net::Expected /*expected*/) {
  return alive() ? network_->scheduler().wait(future, deadline) : future.ready();
}

TimePoint SimMessenger::now() const noexcept {
  return alive() ? network_->scheduler().now() : died_at_;
}

agent::TimerId SimMessenger::call_at(TimePoint at, std::function<void()> callback) {
  if (!alive()) return 0;
  SimScheduler& world = network_->scheduler();
  const std::string what = "a timer of " + self().name;
  return world.at(world.to_virtual(Deadline(at)), life_, what,
                  [&world, life = life_, what, callback = std::move(callback)] {
                    world.run_inline(life, what, callback);
                  });
}

bool SimMessenger::cancel(agent::TimerId timer) {
  return alive() && network_->scheduler().cancel(timer);
}

void SimMessenger::run(std::function<void()> task, Rejected rejected) {
  if (alive()) {
    network_->scheduler().run(life_, "a task of " + self().name, std::move(task));
  } else if (rejected) {
    rejected(Error(Code::kShutdown, "the worker has been shut down"));
  }
}

void SimMessenger::resume(CallContext call, std::function<void()> task, Rejected rejected) {
  if (!alive()) return rejected(Error(Code::kShutdown, "the worker has been shut down"));
  network_->scheduler().run(life_, "a call that goes on at " + self().name,
                            [self = shared_from_this(), call = std::move(call),
                             task = std::move(task), rejected = std::move(rejected)] {
                              if (self->is_late(call.deadline)) return rejected(too_late());
                              self->run_in(call, task);
                            });
}

std::vector<wire::FunctionRecord> SimMessenger::functions_of(int rank) const {
  if (rank == rank_) return functions_;
  if (!alive() || rank < 0 || rank >= network_->size()) return {};
  if (!network_->line_open(rank_, rank)) return {};
  return network_->at(rank)->functions_;
}

agent::MessengerCounters SimMessenger::counters() const {
  agent::MessengerCounters counters = counters_;
  for (const auto& [peer, line] : lines_) {
    counters.in_flight += line->pending.count();
    counters.requests_sent += line->requests_sent;
    counters.requests_received += line->requests_received;
  }
  if (!alive()) return counters;
  counters.connections = network_->open_lines(rank_);
  counters.threads = network_->scheduler().waiting_threads(life_);
  return counters;
}

void SimMessenger::on_request(int from, int epoch, wire::InFrame&& frame) {
  if (frame.header.kind == wire::Kind::kGoodbye || frame.header.kind == wire::Kind::kPong) return;
  if (frame.header.kind == wire::Kind::kPing) return send_sign(from, wire::Kind::kPong);
  counters_.calls_received += !(frame.header.flags & wire::kOneWay);
  if (network_->epoch_seen(rank_, from) == epoch) {
    line_to(from)->requests_received += frame.header.kind != wire::Kind::kShutdown;
  }
  SimScheduler& world = network_->scheduler();
  Deadline deadline;
  if (frame.header.remaining_us > 0) {
    deadline = Deadline(world.now() + Micros(frame.header.remaining_us));
  }
  const HandlerSlot& slot = handlers_[static_cast<uint8_t>(frame.header.kind)];
  auto request = std::make_shared<Request>(from, std::move(frame), deadline,
                                           std::make_shared<Route>(weak_from_this(), from, epoch));
  const std::string what = self().name + " serves " + std::string(name_of(request->kind())) + " " +
                           SimNetwork::number_of(request->frame().header.request_id) + " of " +
                           workers_[static_cast<size_t>(from)].name;
  if (!slot.handler) {
    request->fail(Error(Code::kNotRegistered, "this worker does not handle frames of kind '" +
                                                  std::string(name_of(request->kind())) + "'")
                      .advice("build both workers with the same farspan and the same rooms"));
  } else if (slot.run == Run::kInline) {
    world.run_inline(life_, what, [&] { slot.handler(std::move(*request)); });
  } else {
    world.run(life_, what, [self = shared_from_this(), &slot, request] {
      self->serve(slot.handler, std::move(*request));
    });
  }
}

void SimMessenger::serve(const Handler& handler, Request request) {
  if (is_late(request.deadline())) return request.fail(too_late());
  const uint64_t chain = request.frame().header.chain;
  run_in({request.deadline(), chain, request.from(), request.route()},
         [&] { handler(std::move(request)); });
}

bool SimMessenger::is_late(Deadline deadline) const noexcept {
  return !deadline.is_never() && deadline.at() <= now();
}

void SimMessenger::run_in(const CallContext& call, const std::function<void()>& work) {
  const CallContext outer = std::exchange(agent::current_call(), call);
  const net::InChain chain(call.chain);
  work();
  agent::current_call() = outer;
}

void SimMessenger::run_as_self(const std::function<void()>& work) const {
  alive() ? network_->scheduler().run_as(life_, work) : work();
}

void SimMessenger::count_received(int from, int epoch, uint64_t bytes) {
  counters_.bytes_received += bytes;
  if (Line* line = find_line(from, epoch)) line->traffic.received += bytes;
}

void SimMessenger::on_reply(int from, int epoch, wire::InFrame&& frame, bool copy) {
  Line* line = find_line(from, epoch);
  const auto taken = line ? line->pending.take(frame.header.request_id) : PendingCalls::Taken();
  if (taken.handler) {
    taken.handler->on_reply(std::move(frame));
  } else if (!copy && on_late_reply_) {
    run_as_self([&] { on_late_reply_(from, std::move(frame)); });
  }
}

void SimMessenger::fail_call(int peer, int epoch, uint64_t id, const Error& why) {
  Line* line = find_line(peer, epoch);
  const auto taken = line ? line->pending.take(id) : PendingCalls::Taken();
  if (taken.handler) taken.handler->on_error(why);
}

void SimMessenger::on_line_end(int peer, int epoch, const Error& why) {
  const auto found = lines_.find(peer);
  if (found != lines_.end() && found->second->epoch <= epoch) {
    const LinePtr ended = std::move(found->second);
    lines_.erase(found);
    const Error closed(Code::kDisconnected, "the connection was closed by the other side");
    for (const auto& taken : ended->pending.close()) {
      taken.handler->on_error(why.code() == Code::kShutdown ? closed : why);
    }
  }
  tell_loss(peer, why);
}

void SimMessenger::tell_loss(int peer, const Error& why) {
  if (!alive()) return;
  const std::string what = self().name + " hears that a worker is lost";
  for (const OnLost& callback : std::vector<OnLost>(on_lost_)) {
    if (!alive()) return;  // a callback may have ended it
    network_->scheduler().run_inline(life_, what, [&] { callback(peer, why); });
  }
}

void SimMessenger::die(const Error& why) {
  died_at_ = now();
  network_ = nullptr;
  for (const auto& [peer, line] : std::exchange(lines_, {})) {
    for (const auto& taken : line->pending.close()) taken.handler->on_error(why);
  }
}

std::string SimMessenger::describe() const {
  std::string text;
  for (const auto& [number, call] : waiting_) text += "  pending: " + call->describe();
  return text;
}

}  // namespace farspan::testing
