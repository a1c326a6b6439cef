// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TaskQueue: tasks in the order of their arrival, of which the patient ones can be taken alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <farspan/c10d/net/task.h>

namespace farspan::net {

// Threading: none of its own; the reactor guards it.
class TaskQueue {
 public:
  bool empty() const noexcept { return size() == 0; }
  size_t size() const noexcept { return patient_.size() + others_.size(); }
  bool has_patient() const noexcept { return !patient_.empty(); }
  bool has_others() const noexcept { return !others_.empty(); }

  void push(std::unique_ptr<Task> task) {
    auto& queue = queue_of(*task);
    if (indexed_) ++of_chain_[task->chain];
    queue.push_back({next_++, std::move(task)});
  }

  // The one that came first; the queue must not be empty.
  std::unique_ptr<Task> pop() {
    const bool patient = others_.empty() || (!patient_.empty() && first(patient_) < first(others_));
    return pop_of(patient ? patient_ : others_);
  }
  // The patient one that came first; there must be one.
  std::unique_ptr<Task> pop_patient() { return pop_of(patient_); }

  // Whether one of this chain is there. From the first question until the queue is empty, an index
  // answers.
  bool has_chain(uint64_t chain) {
    if (!std::exchange(indexed_, true)) {
      for (const Queue* queue : {&patient_, &others_}) {
        for (const Entry& entry : *queue) ++of_chain_[entry.task->chain];
      }
    }
    return of_chain_.count(chain) > 0;
  }
  // The one of this chain that came first, the patient ones before; null: there is none.
  std::unique_ptr<Task> pop_of_chain(uint64_t chain) {
    if (!has_chain(chain)) return nullptr;
    for (Queue* queue : {&patient_, &others_}) {
      const auto found = std::find_if(queue->begin(), queue->end(), [&](const Entry& entry) {
        return entry.task->chain == chain;
      });
      if (found == queue->end()) continue;
      std::unique_ptr<Task> task = std::move(found->task);
      queue->erase(found);
      forget(*task);
      return task;
    }
    return nullptr;
  }

  // All that are not patient, but those that `stays` holds for.
  template <class Stays>
  std::vector<std::unique_ptr<Task>> take_others(Stays stays) {
    std::vector<std::unique_ptr<Task>> taken;
    for (Entry& entry : std::exchange(others_, {})) {
      if (stays(*entry.task)) {
        others_.push_back(std::move(entry));
      } else {
        taken.push_back(std::move(entry.task));
      }
    }
    for (const auto& task : taken) forget(*task);
    return taken;
  }
  std::vector<std::unique_ptr<Task>> take_all() {
    std::vector<std::unique_ptr<Task>> taken;
    while (!empty()) taken.push_back(pop());
    return taken;
  }

 private:
  struct Entry {
    uint64_t order;
    std::unique_ptr<Task> task;
  };
  using Queue = std::deque<Entry>;

  Queue& queue_of(const Task& task) { return task.patient ? patient_ : others_; }
  static uint64_t first(const Queue& queue) { return queue.front().order; }
  std::unique_ptr<Task> pop_of(Queue& queue) {
    std::unique_ptr<Task> task = std::move(queue.front().task);
    queue.pop_front();
    forget(*task);
    return task;
  }
  void forget(const Task& task) {
    if (!indexed_) return;
    const auto found = of_chain_.find(task.chain);
    if (--found->second == 0) of_chain_.erase(found);
    indexed_ = !empty();
  }

  uint64_t next_ = 1;
  Queue patient_, others_;
  bool indexed_ = false;
  std::unordered_map<uint64_t, size_t> of_chain_;  // how many, when indexed_
};

}  // namespace farspan::net
