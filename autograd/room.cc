#include <farspan/autograd/room.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/log.h>

namespace farspan::dist_autograd {
namespace {

constexpr uint16_t kExtensionRoom = 1;
constexpr size_t kTombstones = 4096;

thread_local ContextPtr thread_context;

uint64_t with_rank(int rank, uint64_t number) {
  return (static_cast<uint64_t>(rank + 1) << kRankShift) | number;
}

// What a call is in: its context is the thread's while its function runs.
class ContextScope final : public Interceptor::Scope {
 public:
  explicit ContextScope(ContextPtr context) : context_(std::move(context)) {}
  void enter() override { outer_ = std::exchange(thread_context, context_); }
  void leave() noexcept override { thread_context = std::exchange(outer_, nullptr); }
  const ContextPtr& context() const noexcept { return context_; }

 private:
  const ContextPtr context_;
  ContextPtr outer_;
};

const Extension* extension_of(std::span<const Extension> extensions) {
  for (const Extension& extension : extensions) {
    if (extension.room == kExtensionRoom) return &extension;
  }
  return nullptr;
}

void record_incoming(int from, MessageWay back, const Extension& extension, TensorList& tensors) {
  if (extension.second == 0) return;
  std::vector<at::Tensor*> received;
  for (at::Tensor& tensor : tensors) received.push_back(&tensor);
  record_receive(SendId(extension.second), from, back, std::move(received));
}

ContextPtr not_nested(AutogradRoom& room) {
  if (!thread_context) return room.new_context();
  throw Error(Code::kInvalidArgument, "this thread is in a distributed autograd context already")
      .advice("contexts do not nest: end the outer one first");
}

}  // namespace

ContextPtr current_context() noexcept { return thread_context; }

OutsideContext::OutsideContext() noexcept : context_(std::exchange(thread_context, nullptr)) {}
OutsideContext::~OutsideContext() { thread_context = std::move(context_); }

std::shared_ptr<AutogradRoom> AutogradRoom::install(Worker& worker) {
  std::shared_ptr<AutogradRoom> room(new AutogradRoom(worker));
  worker.put_room(RoomId::kAutograd, room);
  worker.set_interceptor(room);
  room->listen();
  return room;
}

std::shared_ptr<AutogradRoom> AutogradRoom::of(Worker& worker) {
  if (auto* room = static_cast<AutogradRoom*>(worker.room(RoomId::kAutograd))) {
    return room->shared_from_this();
  }
  throw Error(Code::kInvalidArgument, "worker '" + worker.name() + "' has no distributed autograd")
      .advice("make workers with init_rpc");
}

AutogradRoom::AutogradRoom(Worker& worker)
    : host_(worker),
      alive_(worker.weak_from_this()),
      messenger_(worker.share_messenger()),
      self_(worker.rank()),
      protocol_(worker.rank(), [messenger = worker.share_messenger()](int rank) {
        return messenger->worker_name(rank);
      }) {}

void AutogradRoom::listen() {
  using Run = agent::Messenger::Run;
  const auto weak = weak_from_this();
  const auto serve = [weak](agent::Request request) {
    if (const auto room = weak.lock()) room->on_message(std::move(request));
  };
  // Not at once: they walk graphs and run nodes.
  messenger_->handle(wire::Kind::kAutogradControl, Run::kByWaiter, serve);
  messenger_->handle(wire::Kind::kAutogradGradient, Run::kByWaiter, serve);
  messenger_->on_worker_lost([weak](int rank, const Error& why) {
    const auto room = weak.lock();
    if (!room) return;
    room->messenger_->run([room, rank, why] {
      room->lose_peer(rank, why);
      room->lose_contexts_of(rank);
    });
  });
}

// Those that it had made, and those that its calls had brought: nobody else may know that they are
// here, and no backward pass can cross them any more. The others that were called are told, so that
// none takes part as if it were whole.
void AutogradRoom::lose_contexts_of(int rank) {
  std::vector<ContextId> orphans;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, known] : contexts_) {
      if (maker_of(id) == self_) continue;
      if (maker_of(id) == rank || known.callers.count(rank) > 0) orphans.push_back(id);
    }
  }
  for (const ContextId id : orphans) end_context({id, /*lost=*/true});
}

ContextPtr AutogradRoom::new_context() {
  const auto id = ContextId(with_rank(self_, next_context_.fetch_add(1)));
  auto context = std::make_shared<ContextState>(id);
  {
    MutexLock lock(mutex_);
    contexts_.emplace(id, Known{context, {}});
  }
  try {
    pass_gate(id);
  } catch (...) {
    release(id);
    throw;
  }
  return context;
}

// A context that is released while it waits must not stay inside.
void AutogradRoom::pass_gate(ContextId id) {
  if (gate_ && gate_->enter(id) && !find(id)) gate_->released(id);
}

std::vector<ContextId> AutogradRoom::contexts() const {
  MutexLock lock(mutex_);
  std::vector<ContextId> all;
  for (const auto& [id, known] : contexts_) all.push_back(id);
  return all;
}

ContextPtr AutogradRoom::find(ContextId id) const {
  MutexLock lock(mutex_);
  const auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.context;
}

void AutogradRoom::check_whole(ContextId id) const {
  const auto found = released_.find(id);
  if (found == released_.end() || !found->second.lost) return;
  throw Error(Code::kDisconnected, "a worker that had a part in this context was lost")
      .operation("context of worker '" + messenger_->worker_name(maker_of(id)) + "'")
      .advice("make a new Context and do the step again");
}

ContextPtr AutogradRoom::find_whole(ContextId id) const {
  MutexLock lock(mutex_);
  check_whole(id);
  const auto found = contexts_.find(id);
  return found == contexts_.end() ? nullptr : found->second.context;
}

ContextPtr AutogradRoom::find_or_make(ContextId id, const agent::CallContext& call) {
  MutexLock lock(mutex_);
  check_whole(id);
  if (released_.count(id) > 0) return nullptr;
  // After this lock, lose_contexts_of() finds what is made here.
  if (call.caller_gone()) throw Error(Code::kDisconnected, "the caller was lost");
  Known& known = contexts_[id];
  if (!known.context) known.context = std::make_shared<ContextState>(id);
  if (call.from != self_) known.callers.insert(call.from);
  return known.context;
}

void AutogradRoom::end_context(const Release& release) {
  const ContextId id = release.context;
  ContextPtr context;
  std::set<int> workers;
  {
    MutexLock lock(mutex_);
    const auto found = contexts_.find(id);
    if (found != contexts_.end()) {
      context = std::move(found->second.context);
      contexts_.erase(found);
    }
    if (released_.emplace(id, release).second) released_order_.push_back(id);
    if (released_order_.size() > 2 * kTombstones) {
      for (size_t i = 0; i < kTombstones; ++i) released_.erase(released_order_[i]);
      released_order_.erase(released_order_.begin(), released_order_.begin() + kTombstones);
    }
  }
  release_passes(id);
  if (gate_) gate_->released(id);
  if (!context) return;
  std::unordered_map<uint64_t, std::shared_ptr<SendNode>> sends;  // destroyed outside the lock
  {
    MutexLock lock(context->mutex);
    workers.swap(context->workers);
    sends.swap(context->sends);
    context->released = true;
  }
  tell(release, workers);
}

void AutogradRoom::tell(const Release& release, const std::set<int>& workers) {
  for (const int rank : workers) {
    if (rank == self_) continue;
    MetaBuilder builder;
    encode(builder, release);
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kAutogradControl;
    frame.meta = builder.finish();
    messenger_->post(rank, frame);
  }
}

AutogradCounters AutogradRoom::counters() const {
  MutexLock lock(mutex_);
  return {contexts_.size(), std::max(protocol_.active(), passes_.size())};
}

void AutogradRoom::record(ContextState& context, int to, const TensorList& tensors,
                          Extensions& extensions) {
  const auto id = SendId(with_rank(self_, next_send_.fetch_add(1)));
  const auto node = record_send(id, to, {tensors.begin(), tensors.end()});
  if (node) {
    MutexLock lock(context.mutex);
    context.sends.emplace(static_cast<uint64_t>(id), node);
  }
  extensions.push_back(
      {kExtensionRoom, static_cast<uint64_t>(context.id), node ? static_cast<uint64_t>(id) : 0});
}

std::shared_ptr<Interceptor::Scope> AutogradRoom::before_request(int to, TensorList& tensors,
                                                                 Extensions& extensions) {
  if (!thread_context || thread_context->finished) return nullptr;
  {
    MutexLock lock(thread_context->mutex);
    if (thread_context->released) return nullptr;
    thread_context->workers.insert(to);
  }
  record(*thread_context, to, tensors, extensions);
  return std::make_shared<ContextScope>(thread_context);
}

void AutogradRoom::after_reply(Scope&, int from, std::span<const Extension> extensions,
                               TensorList& tensors) {
  if (const Extension* extension = extension_of(extensions)) {
    record_incoming(from, MessageWay::kRequest, *extension, tensors);
  }
}

// One that is not recorded runs in no context, though it may run on a thread that waits in one.
std::shared_ptr<Interceptor::Scope> AutogradRoom::after_request(
    int from, std::span<const Extension> extensions, TensorList& tensors) {
  const Extension* extension = extension_of(extensions);
  ContextPtr context;
  if (extension) context = find_or_make(ContextId(extension->first), agent::current_call());
  if (context) {
    pass_gate(context->id);
    record_incoming(from, MessageWay::kReply, *extension, tensors);
  } else if (!thread_context) {
    return nullptr;
  }
  return std::make_shared<ContextScope>(std::move(context));
}

void AutogradRoom::before_reply(Scope& scope, int to, TensorList& tensors, Extensions& extensions) {
  const ContextPtr& context = static_cast<ContextScope&>(scope).context();
  if (context) record(*context, to, tensors, extensions);
}

Context::Context(Worker& worker) : room_(AutogradRoom::of(worker)), state_(not_nested(*room_)) {
  thread_context = state_;
}

Context::~Context() {
  if (thread_context == state_) thread_context = nullptr;
  room_->release(state_->id);
}

ContextId Context::id() const noexcept { return state_->id; }

void Context::backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options) {
  room_->backward(state_, roots, {}, options);
}

void Context::backward(const std::vector<at::Tensor>& roots,
                       const std::vector<at::Tensor>& gradients, const BackwardOptions& options) {
  room_->backward(state_, roots, gradients, options);
}

at::Tensor Context::gradient(const at::Tensor& leaf) const { return state_->leaves->find(leaf); }

std::vector<std::pair<at::Tensor, at::Tensor>> Context::get_gradients() const {
  return state_->leaves->all();
}

}  // namespace farspan::dist_autograd
