// PyTorch's own RPC agent (TensorPipe) from C++, without Python: two workers, each a process.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
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

namespace bench {

namespace rpc = torch::distributed::rpc;
using Operator = std::shared_ptr<torch::jit::Operator>;
using Reply = c10::intrusive_ptr<rpc::JitFuture>;

inline constexpr const char* kAdd =
    "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";

// By their names in the agent; none: its defaults.
struct AgentOptions {
  std::optional<std::vector<std::string>> transports, channels;
  std::vector<c10::Device> devices;  // each is mapped to itself
};

// The agent needs to be told how to read the types in a message; Python does it otherwise.
inline c10::StrongTypePtr parse_type(const c10::QualifiedName& name) {
  torch::jit::ScriptTypeParser parser;
  return {nullptr, parser.parseType(name.qualifiedName())};
}

inline std::shared_ptr<rpc::TensorPipeAgent> start_agent(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const AgentOptions& chosen) {
  constexpr int kAgentThreads = 16;  // the agent's default
  constexpr float kTimeout_s = 60;   // the agent's default
  std::unordered_map<std::string, rpc::DeviceMap> maps;
  for (const c10::Device& device : chosen.devices) {
    maps["worker" + std::to_string(1 - rank)].emplace(device, device);
  }
  // Else its allocator is not there when the first tensor comes.
  if (!chosen.devices.empty()) at::globalContext().lazyInitDevice(chosen.devices[0].type());
  const rpc::TensorPipeRpcBackendOptions options(kAgentThreads, chosen.transports, chosen.channels,
                                                 kTimeout_s, "env://", maps, chosen.devices);
  auto agent = std::make_shared<rpc::TensorPipeAgent>(
      store, "worker" + std::to_string(rank), rank, 2, options, maps, chosen.devices,
      std::make_unique<rpc::RequestCallbackNoPython>());
  rpc::RpcAgent::setCurrentRpcAgent(agent);
  torch::distributed::autograd::DistAutogradContainer::init(static_cast<int16_t>(rank));
  agent->setTypeResolver(std::make_shared<rpc::TypeResolver>(parse_type));
  agent->start();
  agent->sync();
  return agent;
}

// Calls to worker1.
class Callee {
 public:
  explicit Callee(std::shared_ptr<rpc::TensorPipeAgent> agent) : agent_(std::move(agent)) {}

  Reply send(const Operator& op, std::vector<at::IValue> arguments) const {
    return agent_->send(to_, rpc::ScriptCall(op, std::move(arguments)).toMessage());
  }
  Reply add(const at::Tensor& x) const { return send(add_, {x, x, at::Scalar(1)}); }

 private:
  const std::shared_ptr<rpc::TensorPipeAgent> agent_;
  const rpc::WorkerInfo to_ = agent_->getWorkerInfo("worker1");
  const Operator add_ = torch::jit::getOperatorForLiteral(kAdd);
};

// Runs this program again as worker1, with the store's port behind its two arguments.
inline pid_t start_peer(char** argv, int port) {
  std::string program = "/proc/self/exe", address = std::to_string(port);
  char* arguments[] = {program.data(), argv[1], argv[2], address.data(), nullptr};
  pid_t pid = 0;
  if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
    std::perror("start the peer");
    std::exit(1);
  }
  return pid;
}

[[noreturn]] inline void leave(const std::shared_ptr<rpc::TensorPipeAgent>& agent, pid_t peer) {
  agent->join(/*shutdown=*/true);
  agent->shutdown();
  if (peer != 0) waitpid(peer, nullptr, 0);
  std::fflush(stdout);
  _exit(0);  // PyTorch's statics do not come down in order without Python
}

// Starts the other worker and runs `measure(callee)`; in that one, which has a third argument, does
// what it is asked to.
template <class Measure>
[[noreturn]] void run_workers(int argc, char** argv, const AgentOptions& chosen,
                              const Measure& measure) {
  at::set_num_threads(1);
  const bool is_peer = argc > 3;
  c10d::TCPStoreOptions options;
  options.port = is_peer ? static_cast<uint16_t>(std::atoi(argv[3])) : uint16_t{0};
  options.isServer = !is_peer;
  options.waitWorkers = is_peer;
  if (is_peer) prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const pid_t peer = is_peer ? 0 : start_peer(argv, store->getPort());
  const auto agent = start_agent(store, is_peer ? 1 : 0, chosen);
  if (!is_peer) measure(Callee(agent));
  leave(agent, peer);
}

}  // namespace bench
