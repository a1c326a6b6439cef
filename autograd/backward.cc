// How a worker takes part in backward passes: the protocol says what to do, executors do it.
#include <utility>

#include <farspan/autograd/overloaded.h>
#include <farspan/autograd/room.h>
#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/base/log.h>
#include <farspan/rpc/call_scope.h>
#include <farspan/rpc/incoming_call.h>
#include <farspan/rpc/num_threads.h>
#include <farspan/rpc/outgoing_call.h>

namespace farspan::dist_autograd {
namespace {

// The one that all came from; -1: there are several, or none.
int only_peer(const std::vector<Crossing>& receives) {
  int peer = -1;
  for (const Crossing& receive : receives) {
    if (peer >= 0 && receive.peer != peer) return -1;
    peer = receive.peer;
  }
  return peer;
}

Error has_ended() {
  return Error(Code::kShutdown, "this worker has been shut down").operation("backward");
}

// One thread's, for as long as it has it. No mutex: who has it may wait in another pass, in a node.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& is_taken) noexcept : is_taken_(is_taken) {}
  ~Turn() {
    if (has_it_) is_taken_ = false;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool take() noexcept { return has_it_ = has_it_ || !is_taken_.exchange(true); }

 private:
  std::atomic<bool>& is_taken_;
  bool has_it_ = false;
};

}  // namespace

// This worker's share of one pass.
struct AutogradRoom::PassRun {
  PassRun(const PassId& pass, ContextPtr of) : id(pass), context(std::move(of)) {}
  const PassId id;
  const ContextPtr context;
  std::vector<Root> roots;  // at the initiator
  Promise<void> over;       // likewise
  // Likewise: the worker that all that its own walk reached came from; -1: there is no such one.
  int peer = -1;
  Mutex mutex;
  std::shared_ptr<Executor> executor FARSPAN_GUARDED_BY(mutex);  // from the first walk on
  std::map<SendId, Gradients> kept FARSPAN_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<const void>> watches FARSPAN_GUARDED_BY(mutex);
};

template <class Fn>
void AutogradRoom::step(Fn&& fn, const Gradients* gradients) {
  PassActions actions;
  {
    MutexLock lock(mutex_);
    fn(protocol_, actions);
    // Now, since another thread may be ending the walk that these wait for, and feed them next.
    for (const PassAction& action : actions) {
      if (const auto* kept = std::get_if<Keep>(&action)) keep(*kept, gradients);
    }
  }
  perform(std::move(actions), gradients);
}

void AutogradRoom::release_passes(ContextId id) {
  step([&](PassProtocol& p, PassActions& actions) { p.release(id, actions); });
}

void AutogradRoom::lose_peer(int rank, const Error& why) {
  step([&](PassProtocol& p, PassActions& actions) { p.peer_lost(rank, why, actions); });
}

void AutogradRoom::backward(const ContextPtr& context, const std::vector<at::Tensor>& roots,
                            const std::vector<at::Tensor>& gradients,
                            const BackwardOptions& options) {
  if (context->finished) {
    throw Error(Code::kInvalidArgument, "a consistent step has finished this context")
        .operation("backward")
        .advice("run all backward passes of a Context before its first step, or make a new one");
  }
  const auto worker = alive_.lock();  // what is served here needs it, also after a shutdown
  if (!worker) throw has_ended();
  std::vector<Root> starts = make_roots(roots, gradients);
  publish_device_work();
  Deadline deadline = agent::current_call().deadline;
  if (options.timeout > kNoTimeout) {
    deadline = earlier(deadline, Deadline(messenger_->now() + options.timeout));
  }
  std::shared_ptr<PassRun> run;
  const TimePoint begun = messenger_->now();
  step([&](PassProtocol& p, PassActions& actions) FARSPAN_REQUIRES(mutex_) {
    if (ended_) throw has_ended();
    const PassId pass = p.begin(context->id, options.mode, options.retain_graph, deadline,
                                messenger_->now(), actions);
    run = std::make_shared<PassRun>(pass, context);
    run->roots = std::move(starts);
    passes_.emplace(pass, run);
  });
  const PassId pass = run->id;
  const int peer = run->peer;
  const Future<void> over = std::exchange(run, nullptr)->over.future();
  wait_for(pass, over, options.mode, peer, begun);
  over.value();
  pass_times_.learn(messenger_->now() - begun);
}

// Serves what it reads of the pass. Where several threads wait, one would read what is for others.
void AutogradRoom::wait_for(const PassId& pass, const Future<void>& over, PassMode mode, int peer,
                            TimePoint begun) {
  const auto is_own = [&pass](const agent::Request& request) {
    return pass_of(request.frame().meta.span()) == pass;
  };
  Turn turn(is_read_);
  for (bool asks = mode == PassMode::kExact; !over.ready(); asks = false) {
    const int from = peer >= 0 && turn.take() ? peer : -1;
    const net::Expected end = asks ? net::Expected{} : pass_times_.after(begun);
    net::SpinGovernor& polling = asks ? first_waits_ : later_waits_;
    if (!messenger_->wait_and_serve(*over.state(), from, is_own, polling, end)) return;
  }
}

std::shared_ptr<AutogradRoom::PassRun> AutogradRoom::run_of(const PassId& pass, bool remove) {
  MutexLock lock(mutex_);
  const auto found = passes_.find(pass);
  if (found == passes_.end()) return nullptr;
  auto run = found->second;
  if (remove) passes_.erase(found);
  return run;
}

void AutogradRoom::keep(const Keep& action, const Gradients* gradients) {
  const auto known = contexts_.find(action.pass.context);
  if (known == contexts_.end() || !gradients) return;
  auto& pass = passes_[action.pass];
  if (!pass) pass = std::make_shared<PassRun>(action.pass, known->second.context);
  MutexLock lock(pass->mutex);
  pass->kept[action.send] = *gradients;
}

void AutogradRoom::perform(PassActions actions, const Gradients* gradients) {
  for (const PassAction& action : actions) {
    std::visit(Overloaded{
                   [&](const Walk& a) { walk(a); },
                   [&](const Start& a) {
                     const auto pass = run_of(a.pass);
                     if (!pass) return;
                     if (const auto executor = executor_of(*pass)) executor->start();
                     run(pass);
                   },
                   [&](const Send& a) { send(a, gradients); },
                   [](const Keep&) {},  // has been: step()
                   [&](const Feed& a) { feed(a, gradients); },
                   [&](const Retire& a) { retire(a.pass); },
                   [&](const Cancel& a) {
                     const auto pass = run_of(a.pass);
                     if (!pass) return;
                     if (const auto executor = executor_of(*pass)) executor->cancel(a.why);
                     retire(a.pass);
                   },
                   [&](const Complete& a) { complete(a); },
                   [&](const Watch& a) {
                     auto watch = messenger_->watch(a.rank);
                     const auto pass = run_or_make(a.pass);
                     if (!pass) return;  // it has ended
                     MutexLock lock(pass->mutex);
                     pass->watches.push_back(std::move(watch));
                   },
                   [&](const ArmTimer& a) {
                     messenger_->call_at(a.at, [weak = weak_from_this(), pass = a.pass] {
                       if (const auto room = weak.lock()) {
                         room->messenger_->run([room, pass] {
                           room->step([&](PassProtocol& p, PassActions& more) {
                             p.timer(pass, room->messenger_->now(), more);
                           });
                         });
                       }
                     });
                   },
               },
               action);
  }
}

// The initiator's is needed until the user has been told.
void AutogradRoom::retire(const PassId& id) {
  const auto pass = run_of(id, id.initiator != self_);
  if (!pass) return;
  std::shared_ptr<Executor> executor;  // destroyed outside the lock
  MutexLock lock(pass->mutex);
  executor = std::move(pass->executor);
}

std::shared_ptr<Executor> AutogradRoom::executor_of(PassRun& pass) const {
  MutexLock lock(pass.mutex);
  return pass.executor;
}

// For a pass that another worker began; null when its context is gone.
std::shared_ptr<AutogradRoom::PassRun> AutogradRoom::run_or_make(const PassId& pass) {
  MutexLock lock(mutex_);
  const auto found = passes_.find(pass);
  if (found != passes_.end()) return found->second;
  const auto known = contexts_.find(pass.context);
  // One that has ended meanwhile must not come back: nothing would take it away.
  if (known == contexts_.end() || !protocol_.knows(pass)) return nullptr;
  auto run = std::make_shared<PassRun>(pass, known->second.context);
  passes_.emplace(pass, run);
  return run;
}

void AutogradRoom::walk(const Walk& action) {
  Walked found;
  try {
    const auto pass = run_or_make(action.pass);
    if (!pass) {
      throw Error(Code::kNotFound, "the context is not known on worker '" +
                                       messenger_->self().name + "' (any more)");
    }
    auto executor = executor_of(*pass);
    if (!executor) executor = make_executor(pass, action.terms);
    std::vector<Boundary*> reached;
    if (action.roots) reached = executor->walk(pass->roots);
    std::vector<std::shared_ptr<torch::autograd::Node>> entries;
    {
      MutexLock lock(pass->context->mutex);
      const auto enter = [&](const std::shared_ptr<SendNode>& node) {
        entries.push_back(node);
        if (action.all_sends) found.sends.push_back({node->peer(), node->id()});
      };
      if (action.all_sends) {
        for (const auto& [id, node] : pass->context->sends) enter(node);
      }
      for (const SendId id : action.sends) {
        const auto node = pass->context->sends.find(static_cast<uint64_t>(id));
        if (node == pass->context->sends.end()) {
          throw Error(Code::kNotFound, "a tensor was received that worker '" +
                                           messenger_->self().name + "' did not send");
        }
        enter(node->second);
      }
    }
    if (!entries.empty()) {
      for (Boundary* boundary : executor->walk(entries)) reached.push_back(boundary);
    }
    for (Boundary* boundary : reached) {
      const auto& receive = dynamic_cast<const ReceiveNode&>(*boundary);
      found.receives.push_back({receive.peer(), receive.id()});
    }
    const int peer = only_peer(found.receives);
    if (action.roots && peer != self_) pass->peer = peer;  // of its own no line brings anything
  } catch (...) {
    fail(action.pass, std::current_exception());
    return;
  }
  step([&](PassProtocol& p, PassActions& actions) {
    p.walked(action.pass, action.token, found, messenger_->now(), actions);
  });
}

std::shared_ptr<Executor> AutogradRoom::make_executor(const std::shared_ptr<PassRun>& pass,
                                                      const PassTerms& terms) {
  ExecutorOptions options;
  options.retain_graph = terms.retain_graph;
  auto sink = [weak = weak_from_this(), id = pass->id](Boundary& boundary,
                                                       torch::autograd::variable_list tensors) {
    const auto room = weak.lock();
    if (!room) return;
    const auto& receive = dynamic_cast<ReceiveNode&>(boundary);
    const Gradients gradients{std::move(tensors), nullptr, receive.back()};
    room->step(
        [&](PassProtocol& p, PassActions& actions) {
          p.gradient_left(id, receive.id(), room->messenger_->now(), actions);
        },
        &gradients);
  };
  MutexLock lock(pass->mutex);
  if (!pass->executor) {
    pass->executor = std::make_shared<Executor>(options, pass->context->leaves, std::move(sink));
  }
  return pass->executor;
}

void AutogradRoom::send(const Send& action, const Gradients* gradients) {
  static const Gradients kNone;
  const auto* const head = std::get_if<GradientHead>(&action.message);
  const Gradients& payload = head && gradients ? *gradients : kNone;
  if (action.to == self_) {
    // Its own gradient comes back to this worker; on another task, since a node may be running.
    publish_device_work();
    messenger_->run([room = shared_from_this(), message = action.message, payload] {
      room->step(
          [&](PassProtocol& p, PassActions& actions) {
            p.received(room->self_, message, room->messenger_->now(), actions);
          },
          &payload);
    });
    return;
  }
  try {
    MetaBuilder builder;
    wire::OutFrame frame;
    CallScope scope(host_, action.to, payload.way);
    scope.device_terms().host_if_unmapped = true;
    if (head) scope.device_terms().deadline = Deadline::after(head->terms.remaining);
    encode(builder, action.message, payload.tensors, frame.segments, &scope);
    frame.header.kind = head ? wire::Kind::kAutogradGradient : wire::Kind::kAutogradControl;
    frame.meta = builder.finish();
    frame.lent = scope.lent();
    // One that is too large would be dropped, and waited for in vain.
    if (const auto too_large = wire::excess(frame, wire::FrameLimits())) throw *too_large;
    messenger_->post(action.to, frame);
  } catch (...) {
    const auto pass = std::visit([](const auto& m) { return m.pass; }, action.message);
    fail(pass, std::current_exception());
  }
}

void AutogradRoom::feed(const Feed& action, const Gradients* gradients) {
  const auto pass = run_of(action.pass);
  if (!pass) return;
  std::shared_ptr<Executor> executor;
  Gradients fed;
  {
    MutexLock lock(pass->mutex);
    const auto kept = pass->kept.find(action.send);
    if (kept != pass->kept.end()) {
      fed = std::move(kept->second);
      pass->kept.erase(kept);
    } else if (gradients) {
      fed = *gradients;
    }
    executor = pass->executor;
  }
  try {
    if (fed.failure) std::rethrow_exception(fed.failure);
    std::shared_ptr<SendNode> node;
    {
      MutexLock lock(pass->context->mutex);
      const auto found = pass->context->sends.find(static_cast<uint64_t>(action.send));
      if (found != pass->context->sends.end()) node = found->second;
    }
    if (!executor || !node)
      throw Error(Code::kInternal, "a gradient for a node that was not walked");
    executor->feed(node, std::move(fed.tensors), fed.written);
  } catch (...) {
    fail(action.pass, std::current_exception());
    return;
  }
  run(pass);
}

void AutogradRoom::run(const std::shared_ptr<PassRun>& pass) {
  const auto executor = executor_of(*pass);
  if (!executor) return;
  use_num_threads();
  const OutsideContext outside;  // on whatever thread
  try {
    if (executor->run() != Executor::Progress::kFinished) return;
  } catch (...) {
    fail(pass->id, std::current_exception());
    return;
  }
  step([&](PassProtocol& p, PassActions& actions) { p.finished(pass->id, actions); });
}

void AutogradRoom::fail(const PassId& pass, const std::exception_ptr& failure) {
  Error why = to_error(failure, Code::kRemote);
  why.trail("worker '" + messenger_->self().name + "' (rank " + std::to_string(self_) + ")");
  step([&](PassProtocol& p, PassActions& actions) { p.failed(pass, why, actions); });
}

void AutogradRoom::complete(const Complete& action) {
  const auto pass = run_of(action.pass, true);
  if (!pass) return;
  if (action.error) {
    Error error = *action.error;
    if (error.operation().empty()) error.operation("backward");
    pass->over.set_error(error);
  } else {
    pass->over.set_value();
  }
}

void AutogradRoom::on_message(agent::Request request) {
  try {
    // It may run on a thread that waits in backward().
    const FreshState state(host_);
    const auto streams = own_streams(host_);
    CallScope scope(host_, request.from(), MessageWay::kReply);
    scope.borrow(std::move(request.frame().borrowed));
    Decoded decoded = decode(request.frame().meta.span(), request.frame().segments, &scope);
    if (decoded.release) return end_context(*decoded.release);
    Gradients gradients{std::move(decoded.gradients), nullptr};
    gradients.failure = decoded.failure;
    if (streams) gradients.written = streams->work_so_far(gradients.tensors);
    step(
        [&](PassProtocol& p, PassActions& actions) {
          if (agent::current_call().caller_gone()) return;  // lose_peer() has been, or is to come
          p.received(request.from(), *decoded.message, messenger_->now(), actions);
        },
        &gradients);
  } catch (const std::exception& e) {
    log(LogLevel::kWarning, "autograd", e.what());
  }
}

// Nothing will arrive any more that could end what is under way.
void AutogradRoom::stop() {
  std::vector<std::shared_ptr<PassRun>> mine;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    for (auto pass = passes_.begin(); pass != passes_.end();) {
      if (pass->first.initiator != self_) {
        ++pass;
        continue;
      }
      mine.push_back(std::move(pass->second));
      pass = passes_.erase(pass);
    }
  }
  for (const auto& pass : mine) {
    const Error why = has_ended();
    if (const auto executor = executor_of(*pass)) executor->cancel(why);
    pass->over.set_error(why);
  }
}

void AutogradRoom::end() {
  std::map<PassId, std::shared_ptr<PassRun>> passes;  // destroyed outside the lock
  std::map<ContextId, Known> contexts;
  MutexLock lock(mutex_);
  passes.swap(passes_);
  contexts.swap(contexts_);
}

}  // namespace farspan::dist_autograd
