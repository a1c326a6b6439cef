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
  } catch (const std::exception& e) {
    log(LogLevel::kWarning, "rref", e.what());
  }
}

void RRefTable::set_value(const RRefId& id, const std::shared_ptr<Result>& value) noexcept {
  publish_device_work();
  step_quietly([&](rref::RRefProtocol& p) FARSPAN_REQUIRES(mutex_) {
    values_.emplace(id, value);
    p.value_set(id, std::nullopt, messenger_->now());
  });
}

// A value that is to be made here. When nothing comes of it, whatever the reason, it fails: nobody
// waits for it in vain, and it goes when its handles do.
class RRefTable::Making {
 public:
  Making(std::shared_ptr<RRefTable> table, const rref::ForkData& wanted)
      : table_(std::move(table)), id_(wanted.rref), what_(wanted.what) {}
  ~Making() { failed(Error(Code::kCancelled, "what was to make it was dropped")); }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  void done(const std::shared_ptr<Result>& value) noexcept {
    if (const auto table = std::exchange(table_, nullptr)) {
      table->set_value(id_, value);
    }
  }
  void failed(Error why) noexcept {
    if (const auto table = std::exchange(table_, nullptr)) {
      if (why.operation().empty()) why.operation(what_);  // not that of who asks for it later
      table->step_quietly(
          [&](rref::RRefProtocol& p) { p.value_set(id_, why, table->messenger_->now()); });
    }
  }

 private:
  std::shared_ptr<RRefTable> table_;  // null: it has been done, or has failed
  const RRefId id_;
  const std::string what_;  // its type, and what makes it
};

// Runs `use` in the state in which functions run; what it throws is the answer.
void RRefTable::run(IncomingCall& call, const Object& object, const Use& use) noexcept {
  try {
    FreshThread fresh(host_);
    use(call, object);
  } catch (...) {
    call.fail(to_error(std::current_exception()));
  }
}

// Runs `use` as soon as the value is made, or it is known that it will not be, on a thread where it
// may block. A call that is turned away then sees a value that has failed.
void RRefTable::with_value(IncomingCall& call, const RRefId& id, Use use) {
  const Object value = local_value(id, call.from(), call.deadline());
  if (value.ready()) return run(call, value, use);
  auto waiting = std::make_shared<IncomingCall>(std::move(call));
  value.on_ready([self = shared_from_this(), waiting, value, use = std::move(use),
                  context = agent::current_call()] {
    self->messenger_->resume(
        context, [self, waiting, value, use] { self->run(*waiting, value, use); },
        [self, waiting, value, use](const Error& why) {
          if (why.code() == Code::kShutdown) return;  // host_ may be gone, and the lines are
          const Object none = make_error_future<std::shared_ptr<Result>>(why);
          self->run(*waiting, value.has_error() ? value : none, use);
        });
  });
}

// Null: it is being made already.
std::shared_ptr<RRefTable::Making> RRefTable::begin_making(int from, const rref::ForkData& wanted) {
  using Creation = rref::RRefProtocol::Creation;
  const HandleId id{wanted.rref, wanted.fork};
  const Creation creation = step([&](rref::RRefProtocol& p) {
    return p.on_creation(run_of(from), id, wanted.what, messenger_->now());
  });
  if (creation == Creation::kGone) throw Error(Code::kCancelled, "nobody wants it any more");
  if (creation == Creation::kRefused) throw Error(Code::kShutdown, "the owner is shutting down");
  if (creation == Creation::kDuplicate) return nullptr;
  return std::make_shared<Making>(shared_from_this(), wanted);
}

void RRefTable::serve_creation(IncomingCall call) {
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    if (!subject.made) throw Error(Code::kCorrupt, "a request to make nothing");
    const std::shared_ptr<Making> making = begin_making(call.from(), *subject.made);
    if (!making) return call.reply(*detail::void_result());
    const Use use = [this, making](IncomingCall& ready, const Object& object) {
      make(ready, object, making);
    };
    subject.self ? with_value(call, *subject.self, use) : run(call, Object(), use);
  } catch (...) {
    call.fail(to_error(std::current_exception()));
  }
}

// By a function, or by a method of `object`. The request is answered when the value is made, or is
// known to have failed: until then it counts as under way. A failure is a value like any other: it
// comes with the first use, and stays as long as somebody has a handle to it.
void RRefTable::make(IncomingCall& call, const Object& object,
                     const std::shared_ptr<Making>& making) {
  std::shared_ptr<Result> result;
  try {
    result = call.run(object.valid() ? object.wait() : nullptr);
  } catch (...) {
    making->failed(to_error(std::current_exception()));
    return call.reply(*detail::void_result());
  }
  when_ready(std::move(call), result, [making, result](IncomingCall& made) {
    const Error* error = result->error();
    error ? making->failed(*error) : making->done(result);
    made.reply(*detail::void_result());
  });
}

void RRefTable::serve_call(IncomingCall call) {
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    with_value(call, self_of(subject), [](IncomingCall& ready, const Object& object) {
      const std::shared_ptr<Result> result = ready.run(object.wait());
      reply_when_ready(std::move(ready), result);
    });
  } catch (...) {
    call.fail(to_error(std::current_exception()));
  }
}

void RRefTable::serve_fetch(IncomingCall call) {
  try {
    const rref::Subject subject = rref::decode_subject(call.subject());
    if (subject.place) call.answer_at(*subject.place);
    with_value(call, self_of(subject), [](IncomingCall& ready, const Object& object) {
      const std::shared_ptr<Result> value = object.wait();
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
