#include <farspan/c10d/base/error.h>

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace farspan {

struct Error::Detail {
  Code code;
  std::string message, worker, operation, advice, remote_type, trail;
  Clock::duration elapsed{-1};
  std::string what;
};

std::string_view name_of(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kTimeout:
      return "TIMEOUT";
    case Code::kDisconnected:
      return "DISCONNECTED";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kOverloaded:
      return "OVERLOADED";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kNotRegistered:
      return "NOT_REGISTERED";
    case Code::kNotOwner:
      return "NOT_OWNER";
    case Code::kShapeMismatch:
      return "SHAPE_MISMATCH";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "ALREADY_EXISTS";
    case Code::kRemote:
      return "REMOTE";
    case Code::kCorrupt:
      return "CORRUPT";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kShutdown:
      return "SHUTDOWN";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kUnknown:
      break;
  }
  return "UNKNOWN";
}

Code code_from_wire(uint16_t number) noexcept {
  return number <= static_cast<uint16_t>(Code::kCancelled) ? static_cast<Code>(number)
                                                           : Code::kUnknown;
}

namespace {

template <class Detail>
void compose(Detail& d) {
  d.what = std::string(name_of(d.code)) + ": ";
  if (!d.operation.empty()) d.what += d.operation;
  if (!d.worker.empty())
    d.what += (d.operation.empty() ? "worker '" : " on worker '") + d.worker + "'";
  if (!d.operation.empty() || !d.worker.empty()) d.what += ": ";
  if (!d.remote_type.empty()) d.what += d.remote_type + ": ";
  d.what += d.message;
  if (d.elapsed.count() >= 0) d.what += " (after " + describe(d.elapsed) + ")";
  if (!d.trail.empty()) d.what += " [" + d.trail + "]";
  if (!d.advice.empty()) d.what += "; " + d.advice;
}

}  // namespace

Error::Error(Code code, std::string message) {
  auto detail = std::make_shared<Detail>();
  detail->code = code;
  detail->message = std::move(message);
  compose(*detail);
  detail_ = std::move(detail);
}

template <class Change>
Error& Error::with(Change&& change) {
  auto detail = std::make_shared<Detail>(*detail_);
  change(*detail);
  compose(*detail);
  detail_ = std::move(detail);
  return *this;
}

Error& Error::worker(std::string name) {
  return with([&](Detail& d) { d.worker = std::move(name); });
}
Error& Error::operation(std::string operation) {
  return with([&](Detail& d) { d.operation = std::move(operation); });
}
Error& Error::elapsed(Clock::duration elapsed) {
  return with([&](Detail& d) { d.elapsed = elapsed; });
}
Error& Error::advice(std::string advice) {
  return with([&](Detail& d) { d.advice = std::move(advice); });
}
Error& Error::remote_type(std::string type_name) {
  return with([&](Detail& d) { d.remote_type = std::move(type_name); });
}
Error& Error::trail(std::string hop) {
  return with([&](Detail& d) { d.trail += d.trail.empty() ? hop : " <- " + hop; });
}

Code Error::code() const noexcept { return detail_->code; }
const std::string& Error::message() const noexcept { return detail_->message; }
const std::string& Error::worker() const noexcept { return detail_->worker; }
const std::string& Error::operation() const noexcept { return detail_->operation; }
const std::string& Error::advice() const noexcept { return detail_->advice; }
const std::string& Error::remote_type() const noexcept { return detail_->remote_type; }
const std::string& Error::trail() const noexcept { return detail_->trail; }
Clock::duration Error::elapsed() const noexcept { return detail_->elapsed; }

const char* Error::what() const noexcept { return detail_->what.c_str(); }

Error to_error(const std::exception_ptr& failure, Code code) noexcept {
  try {
    if (!failure) return Error(Code::kInternal, "no error was given");
    std::rethrow_exception(failure);
  } catch (const Error& e) {
    return e;
  } catch (const std::exception& e) {
    Error error(code, e.what());
    error.remote_type(demangle(typeid(e).name()));
    return error;
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    Error error(code, "an exception that is no std::exception");
    if (type) error.remote_type(demangle(type->name()));
    return error;
  }
}

std::string demangle(const char* mangled) {
  int status = 0;
  char* name = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string result = status == 0 && name ? name : mangled;
  std::free(name);
  return result;
}

std::string describe(Clock::duration d) {
  char text[32];
  const double us = std::chrono::duration<double, std::micro>(d).count();
  if (us < 1e3) {
    std::snprintf(text, sizeof text, "%.0f us", us);
  } else if (us < 1e6) {
    std::snprintf(text, sizeof text, "%.1f ms", us / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", us / 1e6);
  }
  return text;
}

namespace detail {
void assertion_failed(const char* expression, const char* file, int line,
                      const char* why) noexcept {
  std::fprintf(stderr, "farspan: defect at %s:%d: %s (%s); please report it\n", file, line, why,
               expression);
  std::abort();
}
}  // namespace detail

}  // namespace farspan
