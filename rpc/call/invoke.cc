#include <farspan/rpc/call/invoke.h>

#include <c10/util/Exception.h>

#include <string>

namespace farspan {

std::shared_ptr<Result> invoke(const Function& function, Arguments& arguments,
                               const std::shared_ptr<Result>& self) {
  std::shared_ptr<Result> result = function.invoke_unchecked(function, arguments, self);
  // An asynchronous method may use its object until then.
  if (self && !result->ready()) result->on_ready([self] {});
  return result;
}

void write_result(const Function& function, schema::Payload::Builder payload, Writer& writer,
                  const Result& result) {
  try {
    guard_write([&] { result.encode(payload.initValues(1)[0], writer); });
  } catch (const BadValue& bad) {
    detail::throw_bad_result(function, bad);
  }
}

namespace detail {

void throw_bad_argument(const Function& function, size_t index, const BadValue& bad) {
  throw bad.as_error("argument " + std::to_string(index + 1) + " of '" + function.name + "'");
}

void throw_bad_result(const Function& function, const BadValue& bad) {
  throw bad.as_error("result of '" + function.name + "'");
}

void rethrow_thrown_by(const Function& function) {
  try {
    throw;
  } catch (const c10::Error& failure) {
    // what() would add a screen of stack trace.
    throw Error(Code::kRemote, failure.what_without_backtrace())
        .remote_type(demangle(typeid(failure).name()))
        .operation(function.name);
  } catch (...) {
    Error error = to_error(std::current_exception(), Code::kRemote);
    if (error.operation().empty()) error.operation(function.name);
    throw error;
  }
}

void expect_argument_count(const Function& function, const Arguments& arguments, size_t count) {
  if (arguments.values.size() == count) return;
  throw Error(Code::kInvalidArgument, "'" + function.name + "' takes " + std::to_string(count) +
                                          " arguments, got " +
                                          std::to_string(arguments.values.size()));
}

void* object_for(const Function& function, Result* self) {
  const ObjectPointer object = self ? self->object() : ObjectPointer{&typeid(void), nullptr};
  if (function.class_type != *object.type) {
    throw Error(Code::kInvalidArgument,
                "'" + function.name + "' is a method of " + demangle(function.class_type.name()) +
                    ", and was called on " + (self ? demangle(object.type->name()) : "no object"));
  }
  if (!object.address) {
    throw Error(Code::kInvalidArgument,
                "'" + function.name + "' was called on a pointer that is null");
  }
  return object.address;
}

}  // namespace detail
}  // namespace farspan
