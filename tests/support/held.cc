#include "support/held.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include <farspan/autograd/context.h>
#include <farspan/autograd/room.h>
#include <farspan/optim/room.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/rref.h>
#include <farspan/rref/table.h>

#include "support/workers.h"

namespace farspan::testing {

std::vector<std::string> held_by(Worker& worker) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what, size_t count) {
    if (count > 0) lines.push_back(worker.name() + ": " + std::to_string(count) + " " + what);
  };
  const rref::Counters references = RRefTable::of(worker).counters();
  add("values owned", references.owned);
  add("handles of others to them", references.forks);
  add("handles to values elsewhere", references.users);
  add("forks that are not accepted", references.pending_children);
  add("waits for references", references.waits);
  add("messages about references that are not acknowledged", references.unacknowledged);
  const auto autograd = dist_autograd::AutogradRoom::of(worker)->counters();
  add("contexts", autograd.contexts);
  add("passes", autograd.passes);
  const auto gate = optim::OptimRoom::of(worker)->counters();
  add("contexts at the gate", gate.contexts);
  add("entries at the gate", gate.entries);
  add("steps at the gate", gate.steps);
  add("calls in flight", static_cast<size_t>(worker.counters().in_flight));
  for (const std::string& one : RRefTable::of(worker).holdings()) lines.push_back("  " + one);
  return lines;
}

std::vector<std::string> held_here() { return held_by(current_worker()); }

int64_t passes_here() {
  return static_cast<int64_t>(dist_autograd::AutogradRoom::of(current_worker())->counters().passes);
}

void expect_nothing_held(Workers& workers, const std::set<int>& but) {
  const auto held = [&] {
    std::vector<std::string> all;
    for (int rank = 0; rank < workers.count(); ++rank) {
      if (but.contains(rank)) continue;
      for (std::string& line : held_by(workers[rank])) all.push_back(std::move(line));
    }
    return all;
  };
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (!held().empty() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (const std::string& line : held()) ADD_FAILURE() << "still held: " << line;
}

namespace {
FARSPAN_REGISTER(held_here, passes_here);
}  // namespace

}  // namespace farspan::testing
