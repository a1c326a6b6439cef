// What a call throws.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::testing {

// The Error of a call that must fail. Where it does not, the test has failed at the caller's line,
// and goes on with kOk. (The compiler's own names of the line: Clang 14 has no
// std::source_location.)
template <std::invocable Call>
Error error_of(Call&& call, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE_AT(file, line) << "nothing was thrown";
  return Error(Code::kOk, "nothing was thrown");
}

// The Code of the Error that a call throws; kOk when it throws none.
template <std::invocable Call>
Code code_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kOk;
}

}  // namespace farspan::testing
