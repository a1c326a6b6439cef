// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Many futures at once: collect_all, collect_any, wait_all. Comes with future.h.
//
// Threading: any thread. collect_* do not block; the future that they return becomes ready where
//            a callback of what it waits for runs (Future::on_ready).
// All throw Error kInvalidArgument for a future that was made empty or moved from.
#pragma once

#include <atomic>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future.h>

namespace farspan {

// Ready when all are, with their values in order; or as soon as one has failed, with that error.
// For Future<void>: void. None at all are ready at once.
template <class T>
auto collect_all(const std::vector<Future<T>>& futures) {
  using R = std::conditional_t<std::is_void_v<T>, void, std::vector<detail::Stored<T>>>;
  struct Gathering {
    std::vector<Future<T>> futures;
    std::atomic<size_t> missing;
    Promise<R> promise;
    void finish() {
      if constexpr (std::is_void_v<T>) {
        promise.set_value();
      } else {
        R values;
        values.reserve(futures.size());
        for (const auto& future : futures) values.push_back(future.value());
        promise.set_value(std::move(values));
      }
    }
  };
  auto all = std::make_shared<Gathering>();
  all->futures = futures;
  all->missing = futures.size() + 1;
  auto arrived = [all] {
    if (all->missing.fetch_sub(1) == 1 && !all->promise.future().ready()) all->finish();
  };
  for (const auto& future : futures) {
    future.on_ready([all, future, arrived] {
      if (future.has_error()) all->promise.set_error(future.error());
      arrived();
    });
  }
  auto result = all->promise.future();
  arrived();
  return result;
}

// Ready with the index of the first to be ready, whether it holds a value or an error. Of none at
// all, the future holds kInvalidArgument.
template <class T>
Future<size_t> collect_any(const std::vector<Future<T>>& futures) {
  Promise<size_t> promise;
  if (futures.empty()) {
    promise.set_error(Error(Code::kInvalidArgument, "no futures").operation("collect_any"));
  }
  for (size_t i = 0; i < futures.size(); ++i) {
    futures[i].on_ready([promise, i] { promise.set_value(i); });
  }
  return promise.future();
}

// Waits for all, and returns their values.
//   timeout  for all together; the operations go on. kNoTimeout waits as long as it takes
//   throws   the first error by order of the list, after all have ended; kTimeout
template <class T>
auto wait_all(const std::vector<Future<T>>& futures, Millis timeout = kNoTimeout) {
  const Deadline deadline = Deadline::in(timeout);
  for (const auto& future : futures) {
    if (!future.wait_until(deadline)) {
      throw Error(Code::kTimeout, "not all results are there yet").operation("wait_all");
    }
  }
  return collect_all(futures).wait();
}

}  // namespace farspan
