// PyTorch's own RPC agent (TensorPipe) from C++, without Python: what farspan is compared with.
//
//   pytorch_rpc --transport shm|tcp
//
// shm: the agent's default transports and channels, which on one host are shared memory and
// process_vm_readv. tcp: its libuv transport and the channel that sends over it. The program
// starts its peer itself, and both end together.
#include <ATen/ATen.h>

#include <cstdio>
#include <string>

#include "bench/figures.h"
#include "bench/peers/pytorch_agent.h"

namespace bench {
namespace {

constexpr const char* kNumel = "aten::numel(Tensor self) -> int";

// Measures calls to worker1.
class Caller {
 public:
  Caller(const Callee& callee, const std::string& transport)
      : callee_(callee), transport_(transport) {}

  void small_calls() const {
    constexpr size_t kWarmUp = 500, kCalls = 5000;
    const auto call = [&] { callee_.add(one_)->waitAndThrow(); };
    times_of(kWarmUp, call);
    const auto times = times_of(kCalls, call);
    report("small call p50 " + transport_, median(times), "us");
    if (transport_ != "shm") return;
    report("small call p99 shm", percentile(times, 0.99), "us");
    report("small call after a pause p50 shm", median(times_after_pauses(kCallsAfterPauses, call)),
           "us");
    report("calls per second 1 thread shm", rate_of_threads(1, call), "calls/s");
    report("calls per second 8 threads shm", rate_of_threads(kThreads, call), "calls/s");
  }

  void calls_in_flight() const {
    const auto rate = [&](int threads) {
      return rate_in_flight(
          threads, [&] { return callee_.add(one_); },
          [](const Reply& reply) { reply->waitAndThrow(); });
    };
    report("calls per second 128 in flight shm", rate(1), "calls/s");
    report("calls per second 128 in flight of 8 threads shm", rate(kThreads), "calls/s");
  }

  void tensors() const {
    const Operator numel = torch::jit::getOperatorForLiteral(kNumel);
    for (const TensorSize& size : kTensorSizes) {
      const at::Tensor x = at::ones({static_cast<int64_t>(size.bytes)}, at::kByte);
      const auto call = [&] { callee_.send(numel, {x})->waitAndThrow(); };
      times_of(3, call);
      const auto times = times_of(size.calls, call);
      report_tensor(size, transport_, times);
      if (size.bytes == kTensorSizes.back().bytes) report_hand_over(transport_, times);
    }
  }

 private:
  const Callee& callee_;
  const std::string& transport_;
  const at::Tensor one_ = at::ones({1});
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "", transport = argc > 2 ? argv[2] : "";
  if (option != "--transport" || (transport != "shm" && transport != "tcp")) {
    std::fprintf(stderr, "usage: pytorch_rpc --transport shm|tcp\n");
    return 2;
  }
  bench::AgentOptions options;
  if (transport == "tcp") options = {{{"uv"}}, {{"basic"}}, {}};
  bench::run_workers(argc, argv, options, [&](const bench::Callee& callee) {
    const bench::Caller caller(callee, transport);
    caller.small_calls();
    if (transport == "shm") caller.calls_in_flight();
    caller.tensors();
  });
}
