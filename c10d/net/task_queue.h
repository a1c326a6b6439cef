// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TaskQueue: tasks in the order of their arrival, of which the patient ones can be taken alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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
    queue.push_back({next_++, std::move(task)});
  }

  // The one that came first; the queue must not be empty.
  std::unique_ptr<Task> pop() {
    const bool patient = others_.empty() || (!patient_.empty() && first(patient_) < first(others_));
    return pop_of(patient ? patient_ : others_);
  }
  // The patient one that came first; there must be one.
  std::unique_ptr<Task> pop_patient() { return pop_of(patient_); }

  // The one of this chain that came first, the patient ones before; null: there is none.
  std::unique_ptr<Task> pop_of_chain(uint64_t chain) {
    for (Queue* queue : {&patient_, &others_}) {
      const auto found = std::find_if(queue->begin(), queue->end(), [&](const Entry& entry) {
        return entry.task->chain == chain;
      });
      if (found == queue->end()) continue;
      std::unique_ptr<Task> task = std::move(found->task);
      queue->erase(found);
      return task;
    }
    return nullptr;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Queue* queue : {&patient_, &others_}) {
      for (const Entry& entry : *queue) visit(*entry.task);
    }
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
  static std::unique_ptr<Task> pop_of(Queue& queue) {
    std::unique_ptr<Task> task = std::move(queue.front().task);
    queue.pop_front();
    return task;
  }

  uint64_t next_ = 1;
  Queue patient_, others_;
};

}  // namespace farspan::net
