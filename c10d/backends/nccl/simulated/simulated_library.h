// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimulatedLibrary: an NCCL whose ranks are threads of one process, on simulated devices, for
// tests. As with the real one, who calls something else than the others, or sends to who sends to
// him, waits until the communicator is aborted, and what it has not done by then is garbage; and
// the first call of each kind, or between two ranks, waits for the others itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/base/future.h>

namespace farspan::dist::nccl {

// Each rank may have one of its own, or all share one: communicators meet within the process.
//
// A collective of no elements is nothing, and waits for nobody; a message of no bytes is one.
//
// Threading: every method from any thread. A test's own methods never block.
class SimulatedLibrary : public Library {
 public:
  // From now on the communicators that are there now fail: what is called, and state(), throws
  // Error kUnavailable with `why`. What their streams do goes on, or waits on.
  virtual void fail_all(const std::string& why) = 0;
  // The same for those of one rank.
  virtual void fail(int rank, const std::string& why) = 0;
  // abort() blocks until then, before it does anything for the streams that wait.
  virtual void hold_aborts(Future<void> until) = 0;
  // From now on no end() ends anything.
  virtual void let_ends_fail() = 0;

  // Communicators: those that are there, those that abort() has ended, all that begin() has made.
  virtual size_t communicators() const = 0;
  virtual size_t aborted() const = 0;
  virtual size_t begun() const = 0;
  // What one must not do and NCCL does not always notice: a communicator that is used after its
  // end, before it is ready or by two threads at a time, or ended while it is at work.
  virtual std::vector<std::string> faults() const = 0;
};

//   devices  simulated ones: functions that their streams call may block
std::shared_ptr<SimulatedLibrary> make_simulated_library(std::shared_ptr<device::Devices> devices);

}  // namespace farspan::dist::nccl
