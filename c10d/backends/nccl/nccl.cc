#include <farspan/c10d/backends/nccl/nccl.h>

#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/cpu/cpu.h>
#include <farspan/c10d/backends/nccl/agreements.h>
#include <farspan/c10d/backends/nccl/collectives.h>
#include <farspan/c10d/backends/nccl/communicator.h>
#include <farspan/c10d/backends/nccl/launches.h>
#include <farspan/c10d/backends/nccl/messages.h>
#include <farspan/c10d/backends/nccl/peers.h>

namespace farspan::dist::nccl {
namespace {

// Until it is looked whether a rank that the start waits for is gone.
constexpr std::chrono::milliseconds kLate{500};

class NcclBackend final : public Backend, public std::enable_shared_from_this<NcclBackend> {
 public:
  NcclBackend(std::shared_ptr<Library> library, std::shared_ptr<Backend> control, GroupSpec spec)
      : library_(std::move(library)),
        control_(std::move(control)),
        spec_(std::move(spec)),
        peers_(std::make_shared<Peers>(control_, spec_)),
        agreements_(control_, spec_.rank) {}
  ~NcclBackend() override { leave(); }

  std::string_view name() const noexcept override { return "nccl"; }
  std::string name_of(int rank) const override { return control_->name_of(rank); }

  std::string_view device_kind() const noexcept override { return library_->devices()->kind(); }
  std::string why_not_on_device(ReduceOp::Kind op, DType type) const override {
    if (library_->reduces(op, type)) return {};
    return "NCCL has no " + std::string(dist::name_of(op)) + " of " +
           std::string(dist::name_of(type));
  }
  void check_device(device::Stream stream) const override;

  void broadcast(const Call& call, Block data) override {
    if (!call.on_device) return beside_devices(call).broadcast(call, data);
    perform(call, [&](const Place& at) { nccl::broadcast(at, call, data); });
  }
  void all_reduce(const Call& call, Block data) override {
    if (!call.on_device) return beside_devices(call).all_reduce(call, data);
    perform(call, [&](const Place& at) { nccl::all_reduce(at, call, data); });
  }
  void reduce(const Call& call, Block data) override {
    if (!call.on_device) return beside_devices(call).reduce(call, data);
    perform(call, [&](const Place& at) { nccl::reduce(at, call, data); });
  }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    if (!call.on_device) return beside_devices(call).all_gather(call, in, out);
    perform(call, [&](const Place& at) { nccl::all_gather(at, call, in, out); });
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    if (!call.on_device) return beside_devices(call).gather(call, in, out);
    perform(call, [&](const Place& at) { nccl::gather(at, call, in, out); });
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (!call.on_device) return beside_devices(call).scatter(call, in, out);
    perform(call, [&](const Place& at) { nccl::scatter(at, call, in, out); });
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    if (!call.on_device) return beside_devices(call).reduce_scatter(call, in, out);
    perform(call, [&](const Place& at) { nccl::reduce_scatter(at, call, in, out); });
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    if (!call.on_device) return beside_devices(call).all_to_all(call, in, out);
    perform(
        call, [&](const Place& at) { nccl::all_to_all(at, call, in, out); },
        [&] { return agreements_.ask(call, in, out); });
  }
  void barrier(const Call& call) override { beside_devices(call).barrier(call); }

  Future<int> send(const Message& message, Block data) override {
    if (!message.on_device) return control_->send(message, data);
    const auto messages = this->messages();
    return messages ? messages->send(message, data) : make_error_future<int>(left_error());
  }
  Future<int> recv(const Message& message, Block data) override {
    if (!message.on_device) return control_->recv(message, data);
    const auto messages = this->messages();
    return messages ? messages->recv(message, data) : make_error_future<int>(left_error());
  }

  void abort(const Error& why, uint64_t since) noexcept override {
    control_->abort(why, since);
    if (const auto launches = launches_of_group()) {
      launches->fail(why, since, since == 0 ? Deadline(Clock::now()) : Deadline::never());
    }
    if (const auto messages = messages_of_group()) messages->fail(why);
  }
  bool waits_on_device() const noexcept override { return !launches_of_group(); }

  void finish(Deadline deadline) noexcept override {
    if (const auto launches = launches_of_group()) launches->finish(deadline);
    if (const auto messages = messages_of_group()) messages->finish(deadline);
  }
  void leave() noexcept override;
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    auto control = control_->subgroup(spec);
    return std::make_shared<NcclBackend>(library_, std::move(control), std::move(spec));
  }

 private:
  // The other backend, when all ranks are done with it for the calls before.
  Backend& beside_devices(const Call& call) {
    agreements_.settle(call.deadline);
    return *control_;
  }
  template <class Launch>
  void perform(const Call& call, const Launch& launch) {
    perform(call, launch, [&] { return agreements_.ask(call); });
  }
  template <class Launch, class Ask>
  void perform(const Call& call, const Launch& launch, const Ask& ask);
  void start(const Call& call);
  void tell_early_departure(uint64_t since) noexcept;
  bool has_left() const {
    MutexLock lock(mutex_);
    return left_;
  }
  std::shared_ptr<Messages> messages();
  std::shared_ptr<Messages> messages_of_group() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  std::shared_ptr<Launches> launches_of_group() const {
    MutexLock lock(mutex_);
    return launches_;
  }

  const std::shared_ptr<Library> library_;
  const std::shared_ptr<Backend> control_;
  const GroupSpec spec_;
  const std::shared_ptr<Peers> peers_;
  Agreements agreements_;
  mutable Mutex mutex_;
  std::shared_ptr<Communicator> communicator_ FARSPAN_GUARDED_BY(mutex_);  // set with the next
  std::shared_ptr<Launches> launches_ FARSPAN_GUARDED_BY(mutex_);  // null until the first call
  std::shared_ptr<Messages> messages_ FARSPAN_GUARDED_BY(mutex_);  // null until the first
  bool left_ FARSPAN_GUARDED_BY(mutex_) = false;
};

// Before other ranks hear of the call: so that it costs the group nothing.
void NcclBackend::check_device(device::Stream stream) const {
  if (library_->devices()->is_captured(stream)) {
    throw Error(Code::kInvalidArgument, "a CUDA graph is being captured on the current stream")
        .advice(
            "what ranks do together cannot be part of one: call it before or after the capture");
  }
  MutexLock lock(mutex_);
  std::optional<int> used = messages_ ? messages_->device() : std::nullopt;
  if (communicator_) used = communicator_->stream().device;
  if (used && *used != stream.device) throw other_device_error(stream.device, *used);
}

// Null: this rank has left.
std::shared_ptr<Messages> NcclBackend::messages() {
  MutexLock lock(mutex_);
  if (left_) return nullptr;
  if (!messages_) {
    const auto tell = [weak = weak_from_this()](const Error& why) {
      if (const auto self = weak.lock()) self->abort(why, 0);
    };
    messages_ = std::make_shared<Messages>(Messages::Options{library_, control_, spec_, tell});
  }
  return messages_;
}

template <class Launch, class Ask>
void NcclBackend::perform(const Call& call, const Launch& launch, const Ask& ask) {
  std::shared_ptr<Launches> launches = launches_of_group();
  Future<int> agreed;
  if (launches) {
    agreed = ask();
  } else {
    start(call);  // agrees on the call by the way; but not on the parts of an all_to_all
    launches = launches_of_group();
    agreed = call.signature.op == Op::kAllToAll ? ask() : make_ready_future(-1);
  }
  std::shared_ptr<Communicator> communicator;
  {
    MutexLock lock(mutex_);
    communicator = communicator_;
  }
  const device::Stream caller = call.on_device->stream;
  if (caller.device != communicator->stream().device) check_device(caller);
  const Future<int> ended = launches->begin(call.signature, call.deadline, std::move(agreed));
  try {
    communicator->call(caller, [&](Library& library, Comm comm) {
      launch(Place{library, comm, communicator->stream(), spec_.rank, spec_.size()});
    });
    launches->given();
  } catch (...) {
    // What the library says of an abort is not why.
    if (const auto why = launches->failure()) throw *why;
    const Error error = to_error(std::current_exception());
    launches->fail(error, call.signature.sequence, Deadline::never());
    throw error;
  }
  call.on_device->ended = ended;
}

// The communicator: rank 0 says by which id they meet.
void NcclBackend::start(const Call& call) {
  agreements_.settle(call.deadline);
  UniqueId own{};
  if (spec_.rank == 0) own = library_->make_unique_id();
  std::vector<UniqueId> ids(spec_.ranks.size());
  std::vector<Block> places;
  for (UniqueId& id : ids) places.push_back({id.data(), id.size()});
  control_->all_gather(beside(call, DType::UINT8), {own.data(), own.size()}, places);

  const TimePoint begun = Clock::now();
  const auto look = [&] {
    if (has_left()) throw left_error();
    if (Clock::now() - begun > kLate) peers_->watch();
    if (const auto lost = peers_->lost()) throw *lost;
    if (!call.deadline.expired()) return;
    throw Error(Code::kTimeout, "not all ranks have joined NCCL's communicator after " +
                                    farspan::describe(Clock::now() - begun))
        .advice("look at the other ranks' own errors, and at what NCCL_DEBUG=INFO says");
  };
  const Communicator::Spec spec{ids.front(), call.on_device->stream.device, spec_.rank,
                                spec_.size()};
  auto communicator = Communicator::make(library_, spec, look);
  const auto tell = [control = control_](const Error& why, uint64_t since) {
    control->abort(why, since);
  };
  std::shared_ptr<Launches> launches;
  try {
    launches = Launches::make({communicator, library_->devices(), name_of(spec_.rank),
                               [peers = peers_] { peers->watch(); }, tell});
  } catch (...) {
    communicator->abort();
    throw;
  }
  peers_->on_lost([weak = std::weak_ptr<Launches>(launches)](const Error& why) {
    if (const auto alive = weak.lock()) alive->lose_rank(why);
  });
  bool has_left = false;
  {
    MutexLock lock(mutex_);
    has_left = left_;
    if (!has_left) {
      communicator_ = std::move(communicator);
      launches_ = launches;
    }
  }
  if (!has_left) return;
  launches->stop(left_error());
  throw left_error();
}

// What others wait for will not come.
void NcclBackend::tell_early_departure(uint64_t since) noexcept {
  const std::string own = name_of(spec_.rank);
  control_->abort(
      Error(Code::kDisconnected, own + " has left the group while its device was at work")
          .worker(own),
      since);
}

void NcclBackend::leave() noexcept {
  {
    MutexLock lock(mutex_);
    if (std::exchange(left_, true)) return;
  }
  const auto launches = launches_of_group();
  const auto first = launches ? launches->stop(left_error()) : std::nullopt;
  if (first) tell_early_departure(*first);
  const auto messages = messages_of_group();
  if (messages && messages->fail(left_error())) tell_early_departure(0);
  peers_->leave();
  control_->leave();
  agreements_.stop();
  if (messages) messages->stop();
}

}  // namespace

std::shared_ptr<Backend> make_nccl_backend(std::shared_ptr<Library> library,
                                           std::shared_ptr<Backend> control, GroupSpec spec) {
  return std::make_shared<NcclBackend>(std::move(library), std::move(control), std::move(spec));
}

std::shared_ptr<Backend> make_nccl_backend(const BackendContext& context) {
  auto library = registered_library();  // before others are met
  return make_nccl_backend(std::move(library), cpu::make_cpu_backend(context), context.group);
}

}  // namespace farspan::dist::nccl
