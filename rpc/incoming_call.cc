#include <farspan/rpc/incoming_call.h>

#include <thread>
#include <utility>

#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/values/message.h>
#include <farspan/c10d/values/tensor_codec.h>
#include <farspan/rpc/call/builtin.h>
#include <farspan/rpc/call/invoke.h>
#include <farspan/rpc/call_scope.h>
#include <farspan/rpc/num_threads.h>
#include <farspan/rpc/outgoing_call.h>

namespace farspan {
namespace {

thread_local int serving_depth = 0;

// What LibTorch keeps for a thread that has done nothing yet.
struct Fresh {
  const at::ThreadLocalState all;
  const c10::AutogradState autograd = c10::AutogradState::get_tls_state();  // parts of it
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
};
const Fresh& fresh_state() {
  static const Fresh* state = [] {
    Fresh* fresh = nullptr;
    std::thread([&] { fresh = new Fresh; }).join();
    return fresh;
  }();
  return *state;
}

}  // namespace

// A reactor's thread that serves one call is fresh by itself, but for what others of a user's have
// left switched; one that serves a call while it waits in another, and a thread of the user's, are
// not.
FreshState::FreshState(Worker& worker)
    : current_(worker),
      autograd_(c10::AutogradState::get_tls_state()),
      keys_(c10::impl::tls_local_dispatch_key_set()) {
  use_num_threads();
  devices_.begin_anew();
  const Fresh& fresh = fresh_state();
  if (serving_depth++ > 0 || !net::on_reactor_thread()) {
    guard_.emplace(fresh.all);
  } else {
    c10::AutogradState::set_tls_state(fresh.autograd);
    c10::impl::_force_tls_local_dispatch_key_set(fresh.keys);
  }
}

FreshState::~FreshState() {
  --serving_depth;
  guard_.reset();
  c10::AutogradState::set_tls_state(autograd_);
  c10::impl::_force_tls_local_dispatch_key_set(keys_);
}

FreshThread::FreshThread(Worker& worker) : state_(worker), streams_(own_streams(worker)) {
  observe_device_work();  // the thread may work with a stream of another call
}

FreshThread::~FreshThread() { publish_device_work(); }

IncomingCall::IncomingCall(Worker& worker, agent::Request request)
    : worker_(&worker), request_(std::move(request)) {}

void IncomingCall::begin() {
  guard_read([&] {
    MetaReader message(request_.frame().meta.span());
    begin(message.root<schema::Call>());
  });
}

void IncomingCall::begin(schema::Call::Reader call) {
  if (std::exchange(begun_, true)) return;
  CallScope scope(*worker_, request_.from(), MessageWay::kRequest);
  scope.device_terms().deadline = request_.deadline();
  scope.borrow(std::move(request_.frame().borrowed));
  tensors_ = read_tensors(call.getPayload(), request_.frame().segments, &scope);
  if (Interceptor* interceptor = worker_->interceptor()) {
    const Extensions extensions = read_extensions(call.getExtensions());
    scope_ = interceptor->after_request(request_.from(), extensions, tensors_);
  }
}

std::vector<std::byte> IncomingCall::subject() const {
  return guard_read([&] {
    MetaReader message(request_.frame().meta.span());
    const auto bytes = message.root<schema::Call>().getSubject();
    const auto* data = reinterpret_cast<const std::byte*>(bytes.begin());
    return std::vector<std::byte>(data, data + bytes.size());
  });
}

std::shared_ptr<Result> IncomingCall::run(const std::shared_ptr<Result>& self) {
  return guard_read([&] {
    MetaReader message(request_.frame().meta.span());
    const auto call = message.root<schema::Call>();
    begin(call);
    CallScope values(*worker_, request_.from(), MessageWay::kRequest);
    values.device_terms().deadline = request_.deadline();
    Reader reader(tensors_, request_.frame().segments, &values);
    Arguments arguments{call.getPayload().getValues(), reader};
    InScope in_scope(scope_.get());
    if (request_.kind() == wire::Kind::kBuiltinCall) {
      const auto name = call.getSubject();
      function_name_.assign(reinterpret_cast<const char*>(name.begin()), name.size());
      return invoke_builtin(function_name_, arguments);
    }
    return invoke(function_of(call.getFunction()), arguments, self);
  });
}

const Function& IncomingCall::function_of(uint64_t id) {
  const Function* function = Registry::global().find(id);
  if (!function) throw_not_registered(id);
  function_name_ = function->name;
  return *function;
}

// The caller has told in its handshake what its ids stand for.
void IncomingCall::throw_not_registered(uint64_t id) const {
  const std::string here = "worker '" + worker_->name() + "'";
  for (const auto& wanted : worker_->messenger().functions_of(request_.from())) {
    if (wanted.id != id) continue;
    const Function* same_name = Registry::global().find(wanted.name);
    if (same_name) {
      throw Error(Code::kNotRegistered, here + " has '" + wanted.name +
                                            "' with another signature: " + same_name->signature +
                                            " there, " + wanted.signature + " at the caller")
          .advice("build both programs from the same sources");
    }
    throw Error(Code::kNotRegistered, here + " has no function '" + wanted.name + "'")
        .advice("register it in that worker's program, too: FARSPAN_REGISTER(" + wanted.name + ")");
  }
  throw Error(Code::kNotRegistered, here + " has no function of id " + std::to_string(id))
      .advice("build both programs from the same sources");
}

void IncomingCall::reply(const Result& result) noexcept { reply(result, nullptr); }

void IncomingCall::reply(std::shared_ptr<Result> result) noexcept {
  const Result& own = *result;
  const bool is_last = result.use_count() == 1 && !own.is_shared();
  reply(own, is_last ? &result : nullptr);
}

void IncomingCall::reply(const Result& result, std::shared_ptr<Result>* last) noexcept {
  try {
    send_result(result, last);
  } catch (const BadValue& bad) {
    fail(bad.as_error("the result"));
  } catch (...) {
    fail(to_error(std::current_exception()));
  }
}

// `last`: what keeps the result; it goes as soon as the message has what it needs of it.
void IncomingCall::send_result(const Result& result, std::shared_ptr<Result>* last) {
  if (const Error* error = result.error()) return fail(*error);
  MetaBuilder builder;
  std::vector<Buffer> segments;
  tensors_.clear();  // one that the function returns is not shared with its arguments any more
  CallScope values(*worker_, request_.from(), MessageWay::kReply);
  values.device_terms().deadline = request_.deadline();
  values.device_terms().place = place_;
  Writer writer(segments, &values);
  auto answer = builder.init_root<schema::Return>();
  guard_write([&] {
    auto payload = answer.initPayload();
    result.encode(payload.initValues(1)[0], writer);
    if (last) last->reset();
    if (scope_) {
      Extensions extensions;
      worker_->interceptor()->before_reply(*scope_, request_.from(), writer.tensors(), extensions);
      if (!extensions.empty()) write_extensions(answer, extensions);
    }
    write_tensors(payload, writer, Bulk::kCopyIfShared);
  });
  publish_device_work();
  request_.reply(builder.finish(), std::move(segments), values.lent());
  for (const auto& outcome : values.take_outcomes()) outcome(true);
}

void IncomingCall::let_go_of_arguments() noexcept {
  tensors_.clear();
  request_.frame().segments.clear();
}

void IncomingCall::fail(const Error& error) noexcept {
  Error named = error;
  std::string hop = function_name_.empty() ? "" : "'" + function_name_ + "' on ";
  hop += "worker '" + worker_->name() + "' (rank " + std::to_string(worker_->rank()) + ")";
  publish_device_work();
  request_.fail(named.trail(std::move(hop)));
}

void when_ready(IncomingCall call, const std::shared_ptr<Result>& result,
                std::function<void(IncomingCall&)> fn) {
  if (result->ready()) return fn(call);
  call.let_go_of_arguments();
  auto waiting = std::make_shared<IncomingCall>(std::move(call));
  result->on_ready([waiting, fn = std::move(fn), worker = waiting->worker().weak_from_this()] {
    if (const auto here = worker.lock()) fn(*waiting);
  });
}

void reply_when_ready(IncomingCall call, std::shared_ptr<Result> result) {
  if (result->ready()) return call.reply(std::move(result));
  when_ready(std::move(call), result, [result](IncomingCall& ready) { ready.reply(*result); });
}

void serve_calls(Worker& worker) {
  const auto serve = [&worker](agent::Request request) {
    FreshThread fresh(worker);
    IncomingCall call(worker, std::move(request));
    try {
      std::shared_ptr<Result> result = call.run(nullptr);
      reply_when_ready(std::move(call), std::move(result));
    } catch (...) {
      call.fail(to_error(std::current_exception()));
    }
  };
  using Run = agent::Messenger::Run;
  worker.messenger().handle(wire::Kind::kCall, Run::kAsTask, serve);
  worker.messenger().handle(wire::Kind::kBuiltinCall, Run::kAsTask, serve);
}

}  // namespace farspan
