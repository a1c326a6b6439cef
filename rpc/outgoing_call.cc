#include <farspan/rpc/outgoing_call.h>

#include <utility>

#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/values/tensor_codec.h>

namespace farspan {
namespace {

std::string advice_for(const Error& why) {
  if (!why.advice().empty()) return why.advice();
  switch (why.code()) {
    case Code::kTimeout:
      return "raise CallOptions::timeout or WorkerOptions::rpc_timeout, or find out what the "
             "worker is busy with";
    case Code::kDisconnected:
    case Code::kUnavailable:
      return "the worker crashed, was killed, ended without shutdown(), or cannot be reached: look "
             "at its own output";
    default:
      return "";
  }
}

}  // namespace

PendingResult::PendingResult(std::shared_ptr<Worker> worker, int peer, CallName name)
    : worker_(std::move(worker)),
      peer_(peer),
      name_(std::move(name)),
      begun_(worker_->messenger().now()) {}

void PendingResult::on_reply(wire::InFrame&& reply) noexcept {
  if (lent_ && !lent_->over.ready()) {
    reply_when_given_back(std::move(reply));
  } else {
    take_reply(reply);
  }
}

// Also where the answer has come, and waits for what the call has lent.
bool PendingResult::give_up() {
  if (worker_->messenger().cancel(peer_, *this)) return true;
  if (!lent_ || !lent_->has_answer || lent_->is_told.exchange(true)) return false;
  on_error(Error(Code::kCancelled, "its caller has given it up"));
  return true;
}

void PendingResult::reply_when_given_back(wire::InFrame&& reply) noexcept {
  const auto self = shared_from_this();
  lent_->has_answer = true;
  agent::TimerId timer = 0;
  if (!deadline_.is_never()) {
    timer = worker_->messenger().call_at(deadline_.at(), [weak = weak_from_this()] {
      const auto call = weak.lock();
      if (!call || call->lent_->is_told.exchange(true)) return;
      call->on_error(
          Error(Code::kTimeout,
                "the answer came, but its devices have not copied the arguments in time"));
    });
  }
  // As for a call that has none: its peer must give signs of life.
  std::shared_ptr<const void> watch;
  if (timer == 0) watch = worker_->messenger().watch(peer_);
  lent_->over.on_ready(
      [self, timer, watch, held = std::make_shared<wire::InFrame>(std::move(reply))] {
        if (self->lent_->is_told.exchange(true)) return self->drop_return(*held);
        if (timer != 0) self->worker_->messenger().cancel(timer);
        if (self->lent_->over.has_error()) {
          self->on_error(self->lent_->over.error());
        } else {
          self->take_reply(*held);
        }
      });
}

void PendingResult::take_reply(wire::InFrame& reply) noexcept {
  const Clock::duration took = elapsed();
  worker_->add_call_time(took);
  if (forecast_) forecast_->learn(took);
  settle(!reply.failed());
  read_reply(reply, MayBlock::kNo);
}

void PendingResult::read_reply(wire::InFrame& reply, MayBlock may_block) noexcept {
  try {
    if (reply.failed()) {
      fail(named(wire::decode_error(reply.meta.span())));
    } else if (const auto changed = borrowed_.changed()) {
      refuse_return(reply, *changed);
    } else {
      read_return(reply, may_block);
    }
  } catch (const WouldBlock&) {
    read_reply_as_task(std::move(reply));
  } catch (const BadValue& e) {
    fail(named(e.as_error("the result")));
  } catch (...) {
    fail(named(to_error(std::current_exception())));
  }
}

void PendingResult::read_reply_as_task(wire::InFrame&& reply) {
  const auto self = shared_from_this();
  worker_->messenger().resume(
      {},
      [self, held = std::make_shared<wire::InFrame>(std::move(reply))] {
        self->read_reply(*held, MayBlock::kYes);
      },
      [self](const Error& why) { self->fail(self->named(why)); });
}

void PendingResult::read_return(wire::InFrame& reply, MayBlock may_block) {
  CurrentWorker current(*worker_);
  auto streams = own_streams(*worker_);
  guard_read([&] {
    MetaReader message(reply.meta.span());
    const auto answer = message.root<schema::Return>();
    CallScope scope(*worker_, peer_, MessageWay::kReply);
    scope.set_deadline(deadline_);
    if (may_block == MayBlock::kNo) scope.must_not_block();
    scope.borrow(reply.borrowed);
    TensorList tensors = read_tensors(answer.getPayload(), reply.segments, &scope);
    reply.borrowed = nullptr;
    if (scope_) {
      const Extensions extensions = read_extensions(answer.getExtensions());
      worker_->interceptor()->after_reply(*scope_, peer_, extensions, tensors);
    }
    const auto values = answer.getPayload().getValues();
    if (values.size() != 1) throw Error(Code::kCorrupt, "an answer without a value");
    if (streams) device_work_ = streams->work_so_far({tensors.begin(), tensors.end()});
    streams.reset();  // what runs because of the answer has streams of its own
    Reader reader(tensors, reply.segments, &scope);
    accept(values[0], reader);
  });
}

// The function may have seen its argument before the change, after it, or half of each.
void PendingResult::refuse_return(wire::InFrame& reply, size_t changed_tensor) {
  fail(named(Error(Code::kInvalidArgument, "tensor " + std::to_string(changed_tensor + 1) +
                                               " of the arguments was changed in place before the "
                                               "call had ended")
                 .advice("wait for the call before you change it, or pass its clone()")));
  drop_return(reply);
}

void PendingResult::drop_return(wire::InFrame& reply) noexcept {
  if (reply.failed()) return;
  try {
    CurrentWorker current(*worker_);
    const auto streams = own_streams(*worker_);
    guard_read([&] {
      MetaReader message(reply.meta.span());
      const auto payload = message.root<schema::Return>().getPayload();
      if (payload.getValues().size() != 1) return;
      CallScope scope(*worker_, peer_, MessageWay::kReply);
      scope.set_deadline(deadline_);
      scope.drop_device_bytes();
      const TensorList tensors = read_tensors(payload, reply.segments, &scope);
      Reader reader(tensors, reply.segments, &scope);
      drop(payload.getValues()[0], reader);
    });
  } catch (const std::exception&) {
    return;  // what cannot be read holds nothing; the call has failed already
  }
}

void PendingResult::on_error(const Error& why) noexcept {
  worker_->add_call_time(elapsed());
  settle(false);
  fail(named(why));
}

void PendingResult::settle(bool arrived) noexcept {
  for (const auto& outcome : std::exchange(outcomes_, {})) outcome(arrived);
}

// `why`, with what is known here: the call, the worker, the time.
Error PendingResult::named(const Error& why) const {
  Error error = why;
  if (error.operation().empty()) error.operation(name_.text());
  if (error.worker().empty() && peer_ >= 0 && peer_ < worker_->world_size()) {
    error.worker(worker_->workers()[static_cast<size_t>(peer_)].name);
  }
  if (error.elapsed().count() < 0) error.elapsed(elapsed());
  return error.advice(advice_for(error));
}

bool PendingResult::wait_for_answer(FutureCore& future, Deadline deadline) {
  // A thread that waits in one call, and runs a continuation there, may be in that one's chain.
  const uint64_t served = agent::current_call().chain;
  const net::InChain chain(served == 0 ? chain_ : net::current_chain());
  return worker_->messenger().wait(future, deadline, peer_,
                                   forecast_ ? forecast_->after(begun_) : net::Expected());
}

OutgoingCall::OutgoingCall(Worker& worker, int to, wire::Kind kind, CallName name,
                           uint64_t function)
    : worker_(worker),
      to_(to),
      kind_(kind),
      function_(function),
      name_(std::move(name)),
      scope_(worker, to, MessageWay::kRequest),
      writer_(segments_, &scope_),
      call_(builder_.init_root<schema::Call>()),
      payload_(call_.initPayload()) {
  call_.setFunction(function);
}

void OutgoingCall::subject(std::span<const std::byte> bytes) {
  call_.setSubject({reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()});
}

void OutgoingCall::send(std::shared_ptr<PendingResult> result, const CallOptions& options,
                        bool will_wait) {
  publish_device_work();
  Extensions extensions;
  if (Interceptor* interceptor = worker_.interceptor()) {
    result->scope_ = interceptor->before_request(to_, writer_.tensors(), extensions);
  }
  const Deadline deadline = worker_.deadline_for(options);
  scope_.set_deadline(deadline);
  result->deadline_ = deadline;
  if (function_ != 0) result->forecast_ = &worker_.forecast(to_, function_);
  guard_write([&] {
    if (!extensions.empty()) write_extensions(call_, extensions);
    write_tensors(call_.getPayload(), writer_, Bulk::kShare, &result->borrowed_);
  });
  wire::OutFrame frame;
  frame.meta = builder_.finish();
  result->outcomes_ = scope_.take_outcomes();
  frame.header.kind = kind_;
  frame.header.chain = agent::current_call().chain;
  frame.segments = std::move(segments_);
  if (auto lent = scope_.lent()) {
    result->lent_ = std::make_unique<PendingResult::Lent>(lent->over());
    frame.lent = std::move(lent);
  }
  PendingResult& pending = *result;
  const std::shared_ptr<PendingResult> keep = result;
  worker_.messenger().call(to_, frame, deadline, std::move(result), will_wait);
  pending.chain_ = frame.header.chain;
}

namespace {
void fill(capnp::List<schema::Extension>::Builder list, const Extensions& extensions) {
  for (unsigned i = 0; i < list.size(); ++i) {
    list[i].setRoom(extensions[i].room);
    list[i].setFirst(extensions[i].first);
    list[i].setSecond(extensions[i].second);
  }
}
}  // namespace

std::unique_ptr<DeviceStreams> own_streams(Worker& worker) {
  DeviceCarrier* const carrier = worker.device_carrier();
  return carrier ? carrier->use_own_streams() : nullptr;
}

void write_extensions(schema::Call::Builder call, const Extensions& extensions) {
  fill(call.initExtensions(static_cast<unsigned>(extensions.size())), extensions);
}

void write_extensions(schema::Return::Builder answer, const Extensions& extensions) {
  fill(answer.initExtensions(static_cast<unsigned>(extensions.size())), extensions);
}

Extensions read_extensions(capnp::List<schema::Extension>::Reader list) {
  Extensions extensions;
  for (const auto extension : list) {
    extensions.push_back({extension.getRoom(), extension.getFirst(), extension.getSecond()});
  }
  return extensions;
}

}  // namespace farspan
