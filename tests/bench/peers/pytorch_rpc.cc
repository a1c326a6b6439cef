// PyTorch's own RPC agent (TensorPipe) from C++, without Python: what farspan is compared with.
//
//   pytorch_rpc --transport shm|tcp
//
// shm: the agent's default transports and channels, which on one host are shared memory and
// process_vm_readv. tcp: its libuv transport and the channel that sends over it. The program
// starts its peer itself, and both end together.
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "bench/figures.h"

namespace bench {
namespace {

namespace rpc = torch::distributed::rpc;
using Operator = std::shared_ptr<torch::jit::Operator>;
using Reply = c10::intrusive_ptr<rpc::JitFuture>;

constexpr const char* kAdd =
    "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
constexpr const char* kNumel = "aten::numel(Tensor self) -> int";
constexpr int kAgentThreads = 16;  // the agent's default
constexpr float kTimeout_s = 60;   // the agent's default

// The agent needs to be told how to read the types in a message; Python does it otherwise.
c10::StrongTypePtr parse_type(const c10::QualifiedName& name) {
  torch::jit::ScriptTypeParser parser;
  return {nullptr, parser.parseType(name.qualifiedName())};
}

std::shared_ptr<rpc::TensorPipeAgent> start_agent(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, std::string_view transport) {
  std::optional<std::vector<std::string>> transports, channels;
  if (transport == "tcp") transports = {"uv"}, channels = {"basic"};
  const rpc::TensorPipeRpcBackendOptions options(kAgentThreads, transports, channels, kTimeout_s,
                                                 "env://");
  auto agent = std::make_shared<rpc::TensorPipeAgent>(
      store, "worker" + std::to_string(rank), rank, 2, options,
      std::unordered_map<std::string, rpc::DeviceMap>{}, std::vector<c10::Device>{},
      std::make_unique<rpc::RequestCallbackNoPython>());
  rpc::RpcAgent::setCurrentRpcAgent(agent);
  torch::distributed::autograd::DistAutogradContainer::init(static_cast<int16_t>(rank));
  agent->setTypeResolver(std::make_shared<rpc::TypeResolver>(parse_type));
  agent->start();
  agent->sync();
  return agent;
}

// Measures calls to worker1.
class Caller {
 public:
  Caller(std::shared_ptr<rpc::TensorPipeAgent> agent, std::string transport)
      : agent_(std::move(agent)), transport_(std::move(transport)) {}

  void small_calls() const {
    constexpr size_t kWarmUp = 500, kCalls = 5000;
    const auto call = [&] { add()->waitAndThrow(); };
    times_of(kWarmUp, call);
    const auto times = times_of(kCalls, call);
    report("small call p50 " + transport_, median(times), "us");
    if (transport_ != "shm") return;
    report("small call p99 shm", percentile(times, 0.99), "us");
    report("small call after a pause p50 shm", median(times_after_pauses(kCallsAfterPauses, call)),
           "us");
    report("calls per second 8 threads shm", rate_of_threads(kThreads, kCallsOfThread, call),
           "calls/s");
  }

  void calls_in_flight() const {
    constexpr size_t kCalls = 20'000, kInFlight = 128;
    std::deque<Reply> pending;
    const Stopwatch stopwatch;
    for (size_t i = 0; i < kCalls; ++i) {
      pending.push_back(add());
      if (pending.size() < kInFlight) continue;
      pending.front()->waitAndThrow();
      pending.pop_front();
    }
    for (const Reply& reply : pending) reply->waitAndThrow();
    report("calls per second 128 in flight " + transport_, kCalls / stopwatch.microseconds() * 1e6,
           "calls/s");
  }

  void tensors() const {
    for (const TensorSize& size : kTensorSizes) {
      const at::Tensor x = at::ones({static_cast<int64_t>(size.bytes)}, at::kByte);
      const auto call = [&] { send(numel_, {x})->waitAndThrow(); };
      times_of(3, call);
      const auto times = times_of(size.calls, call);
      report_tensor(size, transport_, times);
      if (size.bytes == kTensorSizes.back().bytes) report_hand_over(transport_, times);
    }
  }

 private:
  Reply send(const Operator& op, std::vector<at::IValue> arguments) const {
    return agent_->send(to_, rpc::ScriptCall(op, std::move(arguments)).toMessage());
  }
  Reply add() const { return send(add_, {one_, one_, at::Scalar(1)}); }

  const std::shared_ptr<rpc::TensorPipeAgent> agent_;
  const std::string transport_;
  const rpc::WorkerInfo to_ = agent_->getWorkerInfo("worker1");
  const Operator add_ = torch::jit::getOperatorForLiteral(kAdd);
  const Operator numel_ = torch::jit::getOperatorForLiteral(kNumel);
  const at::Tensor one_ = at::ones({1});
};

// Runs this program again as worker1.
pid_t start_peer(const std::string& transport, int port) {
  std::string program = "/proc/self/exe", option = "--transport", which = transport,
              address = std::to_string(port);
  char* arguments[] = {program.data(), option.data(), which.data(), address.data(), nullptr};
  pid_t pid = 0;
  if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
    std::perror("pytorch_rpc: start the peer");
    std::exit(1);
  }
  return pid;
}

void serve(const std::string& transport, int port) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const auto agent = start_agent(store, 1, transport);
  agent->join(/*shutdown=*/true);
  agent->shutdown();
  _exit(0);  // PyTorch's statics do not come down in order without Python
}

void measure(const std::string& transport) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const pid_t peer = start_peer(transport, store->getPort());
  const auto agent = start_agent(store, 0, transport);
  const Caller caller(agent, transport);
  caller.small_calls();
  if (transport == "shm") caller.calls_in_flight();
  caller.tensors();
  agent->join(/*shutdown=*/true);
  agent->shutdown();
  waitpid(peer, nullptr, 0);
  std::fflush(stdout);
  _exit(0);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "", transport = argc > 2 ? argv[2] : "";
  if (option != "--transport" || (transport != "shm" && transport != "tcp")) {
    std::fprintf(stderr, "usage: pytorch_rpc --transport shm|tcp\n");
    return 2;
  }
  at::set_num_threads(1);
  argc > 3 ? bench::serve(transport, std::atoi(argv[3])) : bench::measure(transport);
}
