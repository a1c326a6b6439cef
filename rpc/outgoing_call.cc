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

// The function may have seen its argument before the change, after it, or half of each.
Error changed_in_place(size_t tensor) {
  return Error(Code::kInvalidArgument, "tensor " + std::to_string(tensor + 1) +
                                           " of the arguments was changed in place before the "
                                           "call had ended")
      .advice("wait for the call before you change it, or pass its clone()");
}

// What lies below calls, with an operation of its own ("connect ..."), as a call's error.
Error of_a_call(const Error& why) {
  if (why.operation().empty()) return why;
  return Error(why.code(), why.operation() + ": " + why.message())
      .worker(why.worker())
      .elapsed(why.elapsed())
      .advice(why.advice());
}

}  // namespace

void throw_of_call(const Error& why, const Worker& worker, int to, const CallName& name) {
  Error error = of_a_call(why);
  error.operation(name.text());
  if (error.worker().empty()) error.worker(worker.worker_info(to).name);
  throw Error(error);
}

int rank_of(const Worker& worker, const WorkerTarget& to, const char* verb,
            const std::string& function) {
  try {
    return worker.worker_info(to).rank;
  } catch (Error& unknown) {
    throw Error(unknown.operation(CallName{verb, function}.text()));
  }
}

PendingResult::PendingResult(std::shared_ptr<Worker> worker, int peer, CallName name)
    : worker_(std::move(worker)),
      peer_(peer),
      name_(std::move(name)),
      begun_(worker_->messenger().now()) {}

void PendingResult::on_reply(wire::InFrame&& reply) noexcept {
  const bool has_lent = given_back_ && !given_back_->ready();
  if (!has_lent) note_time(true);
  settle(!reply.failed());
  if (!has_lent) return read(reply, MayBlock::kNo);
  keep_for_later(std::move(reply));
  read_when_given_back();
}

// Also where the answer has come, and waits to be read.
bool PendingResult::give_up() {
  if (worker_->messenger().cancel(peer_, *this)) return true;
  is_unwanted_.store(true);
  bool is_ended = false;
  worker_->messenger().run_here([&] { is_ended = end_late(agent::Messenger::given_up()); });
  return is_ended;
}

void PendingResult::keep_for_later(wire::InFrame&& reply) {
  late_ = std::make_unique<Late>(Late{std::move(reply)});
  is_late_.store(true);
  if (deadline_.is_never()) {
    late_->watch = worker_->messenger().watch(peer_);  // it must give signs of life
  } else {
    late_->timer = worker_->messenger().call_at(deadline_.at(), [weak = weak_from_this()] {
      if (const auto call = weak.lock()) {
        call->end_late(Error(Code::kTimeout,
                             "the answer came, but what devices copy for it was not done in time"));
      }
    });
  }
  if (is_unwanted_.load()) end_late(agent::Messenger::given_up());
}

// False: it has been ended, or is not late.
bool PendingResult::end_late(const Error& why) noexcept {
  if (!is_late_.load() || is_over_.exchange(true)) return false;
  late_->given_up.set_value();
  on_error(why);
  return true;
}

void PendingResult::read_when_given_back() {
  given_back_->on_ready([self = shared_from_this()] {
    if (self->given_back_->has_error()) self->end_late(self->given_back_->error());
    self->read(self->late_->reply, MayBlock::kNo);
  });
}

void PendingResult::read_as_task() {
  worker_->messenger().run(
      [self = shared_from_this()] { self->read(self->late_->reply, MayBlock::kYes); },
      [self = shared_from_this()](const Error& why) {
        self->end_late(why);
        self->read(self->late_->reply, MayBlock::kNo);
      });
}

void PendingResult::read(wire::InFrame& reply, MayBlock may_block) noexcept {
  Reading reading;
  const auto fail_with = [&](const Error& why) {
    reply.borrowed = nullptr;
    if (reading.is_mine || claim()) end_with(why);
  };
  try {
    if (is_over_.load()) {
      // What came is dropped below.
    } else if (reply.failed()) {
      fail_with(wire::decode_error(reply.meta.span()));
    } else if (const auto changed = borrowed_.changed()) {
      fail_with(changed_in_place(*changed));
    } else {
      read_return(reply, may_block, reading);
    }
  } catch (const WouldBlock&) {
    if (!late_) keep_for_later(std::move(reply));
    return read_as_task();
  } catch (const BadValue& e) {
    fail_with(e.as_error("the result"));
  } catch (...) {
    fail_with(to_error(std::current_exception()));
  }
  if (!reading.has_values) drop_return(reply);
  if (!late_) return;
  if (late_->timer != 0) worker_->messenger().cancel(late_->timer);
  late_->watch = nullptr;
  late_->reply = {};
}

void PendingResult::read_return(wire::InFrame& reply, MayBlock may_block, Reading& reading) {
  CurrentWorker current(*worker_);
  auto streams = own_streams(*worker_);
  guard_read([&] {
    MetaReader message(reply.meta.span());
    const auto answer = message.root<schema::Return>();
    CallScope scope(*worker_, peer_, MessageWay::kReply);
    DeviceTerms& terms = scope.device_terms();
    terms.deadline = deadline_;
    terms.must_not_block = may_block == MayBlock::kNo;
    if (may_block == MayBlock::kYes) terms.given_up = late_->given_up.future();
    scope.borrow(reply.borrowed);
    TensorList tensors = read_tensors(answer.getPayload(), reply.segments, &scope);
    reading.is_mine = claim();
    if (!reading.is_mine) return;
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
    reading.has_values = true;
    accept(values[0], reader);
  });
}

// Of a call that has ended without it: what must not be lost is read, and let go of.
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
      scope.device_terms().deadline = deadline_;
      scope.device_terms().drops_bytes = true;
      const TensorList tensors = read_tensors(payload, reply.segments, &scope);
      Reader reader(tensors, reply.segments, &scope);
      drop(payload.getValues()[0], reader);
    });
  } catch (const std::exception&) {
    return;  // what cannot be read holds nothing; the call has failed already
  }
}

void PendingResult::on_error(const Error& why) noexcept {
  note_time(false);
  settle(false);
  end_with(of_a_call(why));
}

void PendingResult::end_with(const Error& why) noexcept {
  worker_->add_failed_call();
  fail(named(why));
}

// Whether the call is the calling thread's to be ended: once.
bool PendingResult::claim() noexcept {
  if (is_late_.load() && is_over_.exchange(true)) return false;
  note_time(true);
  return true;
}

void PendingResult::note_time(bool has_answer) noexcept {
  if (std::exchange(is_timed_, true)) return;
  const Clock::duration took = elapsed();
  worker_->add_call_time(took);
  if (has_answer && forecast_) forecast_->learn(took);
}

void PendingResult::settle(bool arrived) noexcept {
  for (const auto& outcome : std::exchange(outcomes_, {})) outcome(arrived);
}

void PendingResult::add_call_to(Error& error) const {
  const bool has_none = error.operation().empty() || error.operation() == name_.function;
  if (has_none) error.operation(name_.text());
  if (error.worker().empty() && peer_ >= 0 && peer_ < worker_->world_size()) {
    error.worker(worker_->workers()[static_cast<size_t>(peer_)].name);
  }
}

// `why`, with what is known here: the call, the worker, the time.
Error PendingResult::named(const Error& why) const {
  Error error = why;
  add_call_to(error);
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
  scope_.device_terms().deadline = deadline;
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
    result->given_back_ = lent->over();
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
