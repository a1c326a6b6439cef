// RPC conformance: what calls must do, written once, for every transport, in the World and between
// processes. The rules: rpc/rpc.h, rpc/README.md. The cases are in the rpc_*_cases.cc beside this.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include <farspan/farspan.h>

#include "conformance/cluster.h"

namespace farspan::testing {

using namespace std::chrono_literals;

// Functions of every worker that cases share.
//
// The gate is a worker's own where it has a process, else one for all. One that waits there is
// blocked in a call, and holds no core.
void close_gate();
void open_gate();
void pass_gate();
Future<int64_t> pass_gate_later(int64_t value);  // no thread waits meanwhile
int64_t waiting_at_gate();
// Returns after so long; blocked, and not busy.
void doze(int64_t ms);
// The same, and keeps a core busy; that long, or until the gate opens.
void toil(int64_t ms);
void toil_at_gate();
int64_t add(int64_t a, int64_t b);
double sum_of(const at::Tensor& x);
std::string whoami();
// How many threads the worker has: those of its process, where it has one for itself.
int64_t thread_count();

class RpcSuite : public ::testing::TestWithParam<ClusterKind> {
 public:
  static void TearDownTestSuite();

 protected:
  void TearDown() override;

  // The workers of this test; the first call says what they are like. w1's gate is closed.
  Cluster& start(const ClusterOptions& options = {});
  Cluster& cluster() { return *cluster_; }
  Worker& w0() { return cluster_ ? cluster_->driver() : start().driver(); }
  TimePoint now() { return w0().messenger().now(); }
  // Lets the cluster go on until `condition` holds; false when it did not within `limit`.
  bool eventually(const std::function<bool()>& condition, Clock::duration limit = 20s);
  // This cluster is not what it was: no other test may go on with it.
  void spoil() { spoiled_ = true; }

  // The Error of a call that must fail.
  template <class Call>
  static Error error_of(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(Code::kOk, "nothing was thrown");
  }
  template <class T>
  static Error error_in(const Future<T>& future) {
    return error_of([&] { future.wait(60s); });
  }

 private:
  struct Shared {
    std::string kind;
    ClusterOptions options;
    std::unique_ptr<Cluster> cluster;
  };
  static Shared& shared();

  ClusterOptions options_;
  std::unique_ptr<Cluster> cluster_;
  bool spoiled_ = false;
};

}  // namespace farspan::testing
