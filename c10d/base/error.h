// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Error: the one exception type. It says what failed, where, after how long, and what to do.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include <farspan/c10d/base/time.h>

namespace farspan {

// Grouped by what the caller can do. The numbers travel on the wire: append only, never reuse.
enum class Code : uint16_t {
  kOk = 0,
  // Try again, perhaps elsewhere.
  kTimeout = 1,
  kDisconnected = 2,
  kUnavailable = 3,  // could not be reached at all
  // Try again later.
  kOverloaded = 4,
  // Fix the program or its configuration.
  kInvalidArgument = 5,
  kNotRegistered = 6,
  kNotOwner = 7,
  kShapeMismatch = 8,
  kNotFound = 9,
  kAlreadyExists = 10,
  // A function of yours threw: remote_type() and message() say what.
  kRemote = 11,
  // Report it.
  kCorrupt = 12,  // bytes that break the protocol
  kInternal = 13,
  // The end.
  kShutdown = 14,
  kCancelled = 15,
  kUnknown = 255,  // sent by a newer peer
};

// "TIMEOUT", "DISCONNECTED", ...
std::string_view name_of(Code code) noexcept;

// The number as received; kUnknown for one that this version does not know.
Code code_from_wire(uint16_t number) noexcept;

// Built in a chain:
//   throw Error(Code::kTimeout, "no reply").worker("ps").operation("rpc_sync square")
//       .elapsed(5s).advice("raise the timeout of the call, or look at what 'ps' is doing");
// what() reads: TIMEOUT: rpc_sync square on worker 'ps': no reply (after 5.00 s); raise the ...
//
// Threading: a value, cheap to copy; the setters are for the thread that builds it.
class Error : public std::exception {
 public:
  Error(Code code, std::string message);

  Error& worker(std::string name);            // whom the operation was addressed to, or ran on
  Error& operation(std::string operation);    // "rpc_sync square", "store get 'key'"
  Error& elapsed(Clock::duration elapsed);    // since the operation began
  Error& advice(std::string advice);          // what to do, as an imperative
  Error& remote_type(std::string type_name);  // the C++ type of what a user's function threw
  Error& trail(std::string hop);              // appends a hop: "worker 'ps' (rank 0)"

  Code code() const noexcept;
  const std::string& message() const noexcept;
  const std::string& worker() const noexcept;
  const std::string& operation() const noexcept;
  const std::string& advice() const noexcept;
  const std::string& remote_type() const noexcept;
  const std::string& trail() const noexcept;  // hops, nearest to the fault first, joined by " <- "
  Clock::duration elapsed() const noexcept;   // negative: not known

  const char* what() const noexcept override;

 private:
  struct Detail;
  template <class Change>
  Error& with(Change&& change);
  std::shared_ptr<const Detail> detail_;  // shared by copies, so never changed
};

// The Error inside `failure`, or one that describes it: a std::exception becomes `code` with its
// message and type.
Error to_error(const std::exception_ptr& failure, Code code = Code::kInternal) noexcept;

// The readable C++ name of a type ("std::runtime_error").
std::string demangle(const char* mangled);

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const char* why) noexcept;
}

}  // namespace farspan

// For what can only be a defect of farspan itself; bad input throws Error instead.
#define FARSPAN_ASSERT(expression, why) \
  ((expression) ? static_cast<void>(0)  \
                : ::farspan::detail::assertion_failed(#expression, __FILE__, __LINE__, why))
