// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TaskQueue: tasks in the order of their arrival, of which the patient ones can be taken alone.
#pragma once

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
  void push_front(std::unique_ptr<Task> task) {
    auto& queue = queue_of(*task);
    queue.push_front({0, std::move(task)});
  }

  // The one that came first; the queue must not be empty.
  std::unique_ptr<Task> pop() {
    const bool patient = others_.empty() || (!patient_.empty() && first(patient_) < first(others_));
    return pop_of(patient ? patient_ : others_);
  }
  // The patient one that came first; there must be one.
  std::unique_ptr<Task> pop_patient() { return pop_of(patient_); }

  std::vector<std::unique_ptr<Task>> take_others() {
    std::vector<std::unique_ptr<Task>> taken;
    while (has_others()) taken.push_back(pop_of(others_));
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
