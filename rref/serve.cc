// What other workers ask of a table: to make values, to call their methods, to fetch them.
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/values/message.h>
#include <farspan/rpc/call.capnp.h>
#include <farspan/rref/codec.h>
#include <farspan/rref/table.h>

namespace farspan {
namespace {

const RRefId& self_of(const rref::Subject& subject) {
  if (!subject.self) throw Error(Code::kCorrupt, "a call on a reference that names none");
  return *subject.self;
}

}  // namespace

void RRefTable::on_control(const agent::Request& request) {
  try {
    const rref::ControlFrame frame = rref::decode_control(request.frame().meta.span());
    if (frame.from.rank != request.from()) {
      throw Error(Code::kCorrupt, "a control frame in another worker's name");
    }
    step([&](rref::RRefProtocol& p) { p.on_control(frame, messenger_->now()); });
  } catch (const Error& e) {
    log(LogLevel::kWarning, "rref", e.what());
  }
}

// Runs `use` with the value as soon as it is made, on a thread where it may block.
void RRefTable::with_value(IncomingCall call, const RRefId& id,
                           std::function<void(IncomingCall&, const std::shared_ptr<Result>&)> use) {
  const auto value = local_value(id, call.from(), call.deadline());
  const auto run = [this, use = std::move(use)](IncomingCall& ready,
                                                const Future<std::shared_ptr<Result>>& result) {
    const auto here = worker();
    FreshThread fresh(*here);
    try {
      use(ready, result.wait());
    } catch (...) {
      ready.fail(to_error(std::current_exception()));
    }
  };
  if (value.ready()) return run(call, value);
  auto waiting = std::make_shared<IncomingCall>(std::move(call));
  const agent::CallContext context = agent::current_call();
  value.on_ready([self = shared_from_this(), waiting, value, run, context] {
    self->messenger_->run([self, waiting, value, run, context] {
      const agent::CallContext outer = std::exchange(agent::current_call(), context);
      run(*waiting, value);
      agent::current_call() = outer;
    });
  });
}

void RRefTable::serve_creation(agent::Request request) {
  const auto here = worker();
  FreshThread fresh(*here);
  IncomingCall call(*here, std::move(request));
  std::optional<RRefId> made;
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    if (!subject.made) throw Error(Code::kCorrupt, "a request to make nothing");
    const HandleId id{subject.made->rref, subject.made->fork};
    if (call.from() != self_.rank) {
      using Creation = rref::RRefProtocol::Creation;
      const Creation creation = step([&](rref::RRefProtocol& p) {
        return p.on_creation(run_of(call.from()), id, subject.made->what, messenger_->now());
      });
      if (creation == Creation::kDuplicate) return call.reply(*detail::void_result());
      if (creation == Creation::kGone) throw Error(Code::kCancelled, "nobody wants it any more");
      if (creation == Creation::kRefused)
        throw Error(Code::kShutdown, "the owner is shutting down");
    }
    made = id.rref;
    if (!subject.self) {
      const std::shared_ptr<Result> result = call.run(nullptr);
      keep_when_ready(std::move(call), id.rref, result);
      return;
    }
    with_value(std::move(call), *subject.self,
               [this, rref = id.rref](IncomingCall& ready, const std::shared_ptr<Result>& object) {
                 try {
                   const std::shared_ptr<Result> result = ready.run(object);
                   keep_when_ready(std::move(ready), rref, result);
                 } catch (const Error& e) {
                   value_failed(rref, e);
                   throw;
                 }
               });
  } catch (...) {
    const Error error = to_error(std::current_exception());
    if (made) value_failed(*made, error);
    call.fail(error);
  }
}

void RRefTable::value_failed(const RRefId& id, const Error& why) {
  step_quietly([&](rref::RRefProtocol& p) { p.value_set(id, why, messenger_->now()); });
}

// The request to make a value is answered when it is made: until then it counts as under way.
void RRefTable::keep_when_ready(IncomingCall call, const RRefId& id,
                                const std::shared_ptr<Result>& result) {
  auto waiting = std::make_shared<IncomingCall>(std::move(call));
  result->on_ready([self = shared_from_this(), waiting, id, result] {
    if (const Error* error = result->error()) {
      self->value_failed(id, *error);
      return waiting->fail(*error);
    }
    self->step_quietly([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(self->mutex_) {
      self->values_.emplace(id, result);
      p.value_set(id, std::nullopt, self->messenger_->now());
    });
    waiting->reply(*detail::void_result());
  });
}

void RRefTable::serve_call(agent::Request request) {
  const auto here = worker();
  IncomingCall call(*here, std::move(request));
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    with_value(std::move(call), self_of(subject),
               [](IncomingCall& ready, const std::shared_ptr<Result>& object) {
                 const std::shared_ptr<Result> result = ready.run(object);
                 reply_when_ready(std::move(ready), result);
               });
  } catch (...) {
    call.fail(to_error(std::current_exception()));
  }
}

void RRefTable::serve_fetch(agent::Request request) {
  const auto here = worker();
  IncomingCall call(*here, std::move(request));
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    with_value(std::move(call), self_of(subject),
               [](IncomingCall& ready, const std::shared_ptr<Result>& value) {
                 ready.begin();
                 ready.reply(*value);
               });
  } catch (...) {
    call.fail(to_error(std::current_exception()));
  }
}

// References in an answer that nobody waits for any more are let go of.
void RRefTable::on_late_reply(int from, const wire::InFrame& reply) {
  if (reply.failed()) return;
  const auto decline = [&](auto&& self, schema::Value::Reader value) -> void {
    if (value.isHandle() && value.getHandle().getKind() == rref::kHandleKind) {
      const auto bytes = value.getHandle().getData();
      const rref::ForkData data =
          rref::decode_fork({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()});
      step([&](rref::RRefProtocol& p) { p.declined(run_of(from), data, messenger_->now()); });
    } else if (value.isList()) {
      for (const auto element : value.getList()) self(self, element);
    } else if (value.isMap()) {
      for (const auto entry : value.getMap()) {
        self(self, entry.getKey());
        self(self, entry.getValue());
      }
    } else if (value.isRecord()) {
      for (const auto field : value.getRecord()) self(self, field.getValue());
    }
  };
  try {
    guard_read([&] {
      MetaReader message(reply.meta.span());
      for (const auto value : message.root<schema::Return>().getPayload().getValues()) {
        decline(decline, value);
      }
    });
  } catch (const Error& e) {
    log(LogLevel::kDebug, "rref", e.what());
  }
}

}  // namespace farspan
