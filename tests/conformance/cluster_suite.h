// ClusterSuite: what tests share that are written once and run over every transport, in the World
// and between processes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/rpc/rpc.h>

#include "conformance/cluster.h"
#include "support/errors.h"

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

// Each test ends with no call, reference, context or pass left on any worker that still serves.
class ClusterSuite : public ::testing::TestWithParam<ClusterKind> {
 public:
  static void TearDownTestSuite();

 protected:
  void TearDown() override;

  // The workers of this test; the first call says what they are like. w1's gate is closed.
  Cluster& start(const ClusterOptions& options = {});
  bool started() const { return cluster_ != nullptr; }
  Cluster& cluster() { return *cluster_; }
  Worker& w0() { return cluster_ ? cluster_->driver() : start().driver(); }
  TimePoint now() { return w0().messenger().now(); }
  // Lets the cluster go on until `condition` holds; false when it did not within `limit`.
  bool eventually(const std::function<bool()>& condition, Clock::duration limit = 20s);
  // This cluster is not what it was: no other test may go on with it.
  void spoil() { spoiled_ = true; }

  template <class T>
  static Error error_in(const Future<T>& future, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
    return error_of([&] { future.wait(60s); }, file, line);
  }
  // What workers that serve hold: support/held.h.
  std::vector<std::string> held();

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

std::vector<ClusterKind> kinds_in_one_process();
// FARSPAN_SEEDS of them, or five.
std::vector<ClusterKind> kinds_in_the_world();
std::string name_of_kind(const ::testing::TestParamInfo<ClusterKind>& info);

// The kinds of processes are apart, so that the tests of each share their processes.
#define FARSPAN_OVER_EVERY_CLUSTER(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(OneProcess, Suite, ::testing::ValuesIn(kinds_in_one_process()),         \
                           name_of_kind);                                                          \
  INSTANTIATE_TEST_SUITE_P(World, Suite, ::testing::ValuesIn(kinds_in_the_world()), name_of_kind); \
  INSTANTIATE_TEST_SUITE_P(ShmProcesses, Suite, ::testing::Values(in_processes("shm")),            \
                           name_of_kind);                                                          \
  INSTANTIATE_TEST_SUITE_P(TcpProcesses, Suite, ::testing::Values(in_processes("tcp")),            \
                           name_of_kind)

}  // namespace farspan::testing
