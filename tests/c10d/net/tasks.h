// Tasks and waits for the tests of the reactor.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/net/reactor.h>

#include "support/eventually.h"

namespace farspan::testing {

class FunctionTask final : public net::Task {
 public:
  FunctionTask(std::function<void()> work, uint64_t in_chain, bool is_patient = false)
      : work_(std::move(work)) {
    chain = in_chain;
    patient = is_patient;
  }
  void run() noexcept override {
    work_();
    done_.set_value();
  }
  void reject(const Error& why) noexcept override {
    work_ = nullptr;
    done_.set_error(why);
  }
  Future<void> done() const { return done_.future(); }

 private:
  std::function<void()> work_;
  Promise<void> done_;
};

// Ready when `work` has run, or with the reason why it was not.
inline Future<void> run(net::Reactor& reactor, std::function<void()> work, uint64_t chain = 0) {
  auto task = std::make_unique<FunctionTask>(std::move(work), chain);
  auto done = task->done();
  reactor.run(std::move(task));
  return done;
}

// The same for a task that is never turned away for want of threads.
inline Future<void> run_patient(net::Reactor& reactor, std::function<void()> work) {
  auto task = std::make_unique<FunctionTask>(std::move(work), 0, true);
  auto done = task->done();
  reactor.run(std::move(task));
  return done;
}

inline bool ends(const Future<void>& future) { return future.wait_for(std::chrono::seconds(10)); }

}  // namespace farspan::testing
