#include "support/sim_messenger.h"

#include <algorithm>
#include <utility>

#include <farspan/c10d/net/reactor.h>

#include "support/sim_network.h"

namespace farspan::testing {

using agent::CallContext;
using agent::Request;

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
  ++counters_.requests_sent;
  if (frame.header.chain == 0) frame.header.chain = (uint64_t(rank_ + 1) << 48) | ++last_chain_;
  if (!alive()) {
    return handler->on_error(Error(Code::kShutdown, "this worker has been shut down"));
  }
  if (to < 0 || to >= network_->size()) {
    return handler->on_error(
        Error(Code::kInvalidArgument, "there is no worker of rank " + std::to_string(to)));
  }
  const uint64_t id = ++last_id_;
  SimScheduler& world = network_->scheduler();
  deadline = Deadline(world.to_virtual(deadline));
  PendingCall& call = pending_[id];
  call = {std::move(handler), to,          network_->epoch_seen(rank_, to),
          frame.header.kind,  world.now(), deadline};
  frame.header.request_id = id;
  if (!deadline.is_never()) {
    const auto left = std::chrono::ceil<Micros>(deadline.remaining(world.now())).count();
    frame.header.remaining_us = static_cast<uint64_t>(std::max<int64_t>(left, 1));
    call.expiry = world.at(deadline.at(), life_, call_text(id, call) + " expires", [this, id] {
      fail_call(id, Error(Code::kTimeout, "no answer in time"));
    });
  }
  counters_.bytes_sent += frame.bytes();
  network_->send(*this, to, frame);
}

void SimMessenger::post(int to, wire::OutFrame& frame) {
  frame.header.flags |= wire::kOneWay;
  if (frame.header.kind != wire::Kind::kShutdown) ++counters_.requests_sent;
  if (!alive() || to < 0 || to >= network_->size()) return;
  counters_.bytes_sent += frame.bytes();
  network_->send(*this, to, frame);
}

bool SimMessenger::wait(FutureCore& future, Deadline deadline, int /*from*/) {
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

void SimMessenger::run(std::function<void()> task) {
  if (alive()) network_->scheduler().run(life_, "a task of " + self().name, std::move(task));
}

std::vector<wire::FunctionRecord> SimMessenger::functions_of(int rank) const {
  if (rank == rank_) return functions_;
  if (!alive() || rank < 0 || rank >= network_->size()) return {};
  if (!network_->line_open(rank_, rank)) return {};
  return network_->at(rank)->functions_;
}

agent::MessengerCounters SimMessenger::counters() const {
  agent::MessengerCounters counters = counters_;
  counters.in_flight = static_cast<int64_t>(pending_.size());
  if (!alive()) return counters;
  counters.connections = network_->open_lines(rank_);
  counters.threads = network_->scheduler().waiting_threads(life_);
  return counters;
}

void SimMessenger::on_request(int from, int epoch, wire::InFrame&& frame) {
  if (frame.header.kind == wire::Kind::kGoodbye) return;
  counters_.calls_received += !(frame.header.flags & wire::kOneWay);
  counters_.requests_received += frame.header.kind != wire::Kind::kShutdown;
  SimScheduler& world = network_->scheduler();
  Deadline deadline;
  if (frame.header.remaining_us > 0) {
    deadline = Deadline(world.now() + Micros(frame.header.remaining_us));
  }
  const HandlerSlot& slot = handlers_[static_cast<uint8_t>(frame.header.kind)];
  auto request = std::make_shared<Request>(from, std::move(frame), deadline,
                                           std::make_shared<Route>(weak_from_this(), from, epoch));
  const std::string what = self().name + " serves " + std::string(name_of(request->kind())) + " #" +
                           std::to_string(request->frame().header.request_id) + " of " +
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
  if (!request.deadline().is_never() && request.deadline().at() <= now()) {
    request.fail(Error(Code::kTimeout, "its deadline passed before it could be run")
                     .advice("the worker is busy: call less at once, or raise the timeout"));
    return;
  }
  const uint64_t chain = request.frame().header.chain;
  CallContext& context = agent::current_call();
  const CallContext outer = std::exchange(context, {request.deadline(), chain, request.from(), request.route()});
  const uint64_t outer_chain = net::current_chain();
  net::set_current_chain(chain);
  handler(std::move(request));
  net::set_current_chain(outer_chain);
  context = outer;
}

SimMessenger::PendingCall SimMessenger::take(uint64_t id) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return {};
  PendingCall call = std::move(found->second);
  pending_.erase(found);
  if (alive()) network_->scheduler().cancel(call.expiry);
  return call;
}

void SimMessenger::on_reply(int from, wire::InFrame&& frame, bool copy) {
  PendingCall call = take(frame.header.request_id);
  network_->scheduler().run_as(life_, [&] {
    if (call.handler) {
      call.handler->on_reply(std::move(frame));
    } else if (!copy && on_late_reply_) {
      on_late_reply_(from, std::move(frame));
    }
  });
}

void SimMessenger::fail_call(uint64_t id, const Error& why) {
  PendingCall call = take(id);
  if (!call.handler) return;
  ++counters_.errors;
  const auto fail = [&] { call.handler->on_error(why); };
  alive() ? network_->scheduler().run_as(life_, fail) : fail();
}

void SimMessenger::on_line_end(int peer, int epoch, const Error& why) {
  std::vector<uint64_t> lost;
  for (const auto& [id, call] : pending_) {
    if (call.to == peer && call.epoch <= epoch) lost.push_back(id);
  }
  const Error of_calls(Code::kDisconnected, "the connection was closed by the other side");
  for (const uint64_t id : lost) fail_call(id, of_calls);
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
  while (!pending_.empty()) fail_call(pending_.begin()->first, why);
}

std::string SimMessenger::call_text(uint64_t id, const PendingCall& call) const {
  return std::string(name_of(call.kind)) + " #" + std::to_string(id) + " of " + self().name +
         " to " + workers_[static_cast<size_t>(call.to)].name;
}

std::string SimMessenger::describe() const {
  std::string text;
  for (const auto& [id, call] : pending_) {
    text += "  pending: " + call_text(id, call);
    if (alive()) text += ", for " + farspan::describe(now() - call.sent);
    text += call.deadline.is_never() ? ", without a deadline\n" : "\n";
  }
  return text;
}

}  // namespace farspan::testing
