#include "pipeline/trace.h"

#include <unordered_set>
#include <utility>

#include <farspan/c10d/base/mutex.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

using farspan::Mutex;
using farspan::MutexLock;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct Trace::Log {
  explicit Log(std::string name) : worker(std::move(name)) {}

  // Nodes of one micro-batch follow each other closely: they become one span.
  void add(const std::string& kind, const std::string& label, int64_t begin) {
    constexpr int64_t kGap = 100'000;  // ns
    const int64_t end = console::nanoseconds_now();
    MutexLock lock(mutex);
    if (!spans.empty()) {
      console::Span& last = spans.back();
      if (last.kind == kind && last.label == label && begin - last.end_ns < kGap) {
        last.end_ns = end;
        return;
      }
    }
    spans.push_back({worker, kind, label, begin, end});
  }

  const std::string worker;
  Mutex computing;  // held during a forward pass; mutex is not
  Mutex mutex;
  std::vector<console::Span> spans FARSPAN_GUARDED_BY(mutex);
};

// Before a node runs backward.
class Trace::Begin : public torch::autograd::FunctionPreHook {
 public:
  explicit Begin(std::shared_ptr<int64_t> begin) : begin_(std::move(begin)) {}
  variable_list operator()(const variable_list& gradients) override {
    *begin_ = console::nanoseconds_now();
    return gradients;
  }

 private:
  const std::shared_ptr<int64_t> begin_;  // shared with the node's End
};

// After it.
class Trace::End : public torch::autograd::FunctionPostHook {
 public:
  End(std::shared_ptr<int64_t> begin, std::shared_ptr<Log> log, std::string label)
      : begin_(std::move(begin)), log_(std::move(log)), label_(std::move(label)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    log_->add("backward", label_, *begin_);
    return outputs;
  }

 private:
  const std::shared_ptr<int64_t> begin_;
  const std::shared_ptr<Log> log_;
  const std::string label_;
};

Trace::Trace(std::string worker) : log_(std::make_shared<Log>(std::move(worker))) {}

at::Tensor Trace::forward(const std::string& label, const std::function<at::Tensor()>& compute) {
  at::Tensor result;
  {
    MutexLock lock(log_->computing);
    const int64_t begin = console::nanoseconds_now();
    result = compute();
    log_->add("forward", label, begin);
  }
  std::vector<Node*> found{result.grad_fn().get()};
  std::unordered_set<Node*> seen{nullptr};
  while (!found.empty()) {
    Node* const node = found.back();
    found.pop_back();
    // Nodes without edges are not this stage's: its parameters, and where its input came in.
    if (!seen.insert(node).second || node->num_outputs() == 0) continue;
    const auto begin = std::make_shared<int64_t>(0);
    node->add_pre_hook(std::make_unique<Begin>(begin));
    node->add_post_hook(std::make_unique<End>(begin, log_, label));
    for (const auto& edge : node->next_edges()) found.push_back(edge.function.get());
  }
  return result;
}

std::vector<console::Span> Trace::spans() const {
  MutexLock lock(log_->mutex);
  return log_->spans;
}
