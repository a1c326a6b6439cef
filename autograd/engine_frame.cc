#include <farspan/autograd/engine_frame.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <farspan/c10d/base/error.h>

namespace farspan::dist_autograd {
namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;
using torch::autograd::GraphTask;
using torch::autograd::variable_list;

// A graph of one node: its backward pass is the frame.
class Frame final : public torch::autograd::Node {
 public:
  explicit Frame(const std::function<void()>& work)
      : Node(torch::autograd::edge_list()), work_(work) {
    add_input_metadata(one());
  }
  std::string name() const override { return "farspan::dist_autograd backward pass"; }

  static const at::Tensor& one() {
    static const at::Tensor tensor = at::ones({});
    return tensor;
  }

 protected:
  variable_list apply(variable_list&&) override {
    work_();
    return {};
  }

 private:
  const std::function<void()>& work_;
};

// LibTorch exports two of the present GraphTask's fields, but not the task. Both must lie where its
// header puts them; otherwise the program runs with another LibTorch than it was compiled for.
GraphTask& present_task() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kExecInfo = offsetof(GraphTask, exec_info_);
  constexpr size_t kNodes = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const uintptr_t exec_info = address(torch::autograd::get_current_graph_task_exec_info());
  const uintptr_t nodes = address(torch::autograd::get_current_graph_task_nodes_in_graph());
  FARSPAN_ASSERT(exec_info != 0, "outside of an engine frame");
  FARSPAN_ASSERT(exec_info - kExecInfo == nodes - kNodes, "compiled for another LibTorch");
  return *reinterpret_cast<GraphTask*>(exec_info - kExecInfo);
}

}  // namespace

void run_in_engine(bool keep_graph, const std::function<void()>& work) {
  Engine::get_default_engine().execute({Edge(std::make_shared<Frame>(work), 0)}, {Frame::one()},
                                       keep_graph, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

FinalCallbacks take_final_callbacks() {
  GraphTask& task = present_task();
  const std::lock_guard<std::mutex> lock(task.final_callbacks_lock_);
  return std::exchange(task.final_callbacks_, {});
}

void return_final_callbacks(FinalCallbacks callbacks) {
  GraphTask& task = present_task();
  const std::lock_guard<std::mutex> lock(task.final_callbacks_lock_);
  callbacks.insert(callbacks.end(), std::make_move_iterator(task.final_callbacks_.begin()),
                   std::make_move_iterator(task.final_callbacks_.end()));
  task.final_callbacks_ = std::move(callbacks);
}

}  // namespace farspan::dist_autograd
