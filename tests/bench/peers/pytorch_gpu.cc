// PyTorch's own RPC agent (TensorPipe) from C++, with tensors of a GPU: what farspan is compared
// with.
//
//   pytorch_gpu --channel cuda_ipc|cuda_basic
//
// cuda_ipc: the callee copies from memory of the caller's that it opens by name. cuda_basic:
// through the processor's memory. The transports are the agent's default ones; tensors of the
// processor go by the channel that sends over them.
#include <ATen/ATen.h>

#include <cstdio>
#include <string>
#include <vector>

#include <torch/csrc/jit/runtime/custom_operator.h>

#include "bench/gpu_calls.h"
#include "bench/peers/pytorch_agent.h"

namespace bench {
namespace {

// The agent sends operators by their names, and only those of this namespace; none of PyTorch's own
// waits for a tensor without reading it.
constexpr const char* kNumel = "aten::farspan_numel_on_arrival(Tensor x) -> int";
const torch::jit::RegisterOperators registered({torch::jit::Operator(
    kNumel,
    [](torch::jit::Stack& stack) {
      const at::Tensor x = torch::jit::pop(stack).toTensor();
      torch::jit::push(stack, numel_on_arrival(x));
    },
    c10::AliasAnalysisKind::CONSERVATIVE)});

void measure(const Callee& callee) {
  const Operator numel = torch::jit::getOperatorForLiteral(kNumel);
  report_small_calls([&](const at::Tensor& x) { callee.add(x)->waitAndThrow(); });
  report_gpu_tensors([&](const at::Tensor& x) { callee.send(numel, {x})->waitAndThrow(); });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "", channel = argc > 2 ? argv[2] : "";
  if (option != "--channel" || (channel != "cuda_ipc" && channel != "cuda_basic")) {
    std::fprintf(stderr, "usage: pytorch_gpu --channel cuda_ipc|cuda_basic\n");
    return 2;
  }
  bench::require_gpu("pytorch_gpu");
  const bench::AgentOptions options{{}, {{channel, "basic"}}, {bench::kGpu}};
  bench::run_workers(argc, argv, options, bench::measure);
}
