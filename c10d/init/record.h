// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// record: what ends a program, told to the torchrun that has started it.
// Source: PyTorch's torch.distributed.elastic.multiprocessing.errors.record, whose file this
// writes.
//
//   int main(int argc, char** argv) {
//     return farspan::dist::record([&] { train(argc, argv); });
//   }
//
// Threading: the thread that main() runs in.
#pragma once

#include <concepts>
#include <exception>
#include <type_traits>
#include <utility>

namespace farspan::dist {

// Writes what was thrown to standard error, and under torchrun to the file that it names in
// TORCHELASTIC_ERROR_FILE, from where it comes into torchrun's own table of failures. Where that
// file cannot be written, a warning says so.
//
// torchrun takes the earliest failure for the root cause. An Error that only tells of another
// rank's end (kDisconnected, kCancelled, kShutdown) is written as one of 10 s later: torchrun
// counts whole seconds, and dates a rank that leaves no file to when it looks. So it never hides
// the cause.
void record_exception(const std::exception_ptr& failure) noexcept;

// Runs what main() is there for, and records what it throws.
//   returns  what `body` does; 0 if that is nothing; 1 when it has thrown
template <std::invocable Body>
int record(Body&& body) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      std::forward<Body>(body)();
      return 0;
    } else {
      return std::forward<Body>(body)();
    }
  } catch (...) {
    record_exception(std::current_exception());
    return 1;
  }
}

}  // namespace farspan::dist
