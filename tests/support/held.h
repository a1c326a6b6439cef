// What workers hold: references, values of others, contexts, passes, calls under way.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <farspan/rpc/worker.h>

namespace farspan::testing {

class Workers;

// One line for each kind of thing, by name and number; empty when the worker is idle.
std::vector<std::string> held_by(Worker& worker);

// Registered: of the worker that it is called on.
std::vector<std::string> held_here();
// Registered: backward passes that the worker takes part in.
int64_t passes_here();

// Waits until no worker but those holds anything, 20 s at most; fails the test by what is held
// then.
void expect_nothing_held(Workers& workers, const std::set<int>& but = {});

// The same at the end of a block: what is made after it may hold things, and goes before.
class NothingHeldAfter {
 public:
  explicit NothingHeldAfter(Workers& workers) : workers_(workers) {}
  ~NothingHeldAfter() { expect_nothing_held(workers_); }
  NothingHeldAfter(const NothingHeldAfter&) = delete;
  NothingHeldAfter& operator=(const NothingHeldAfter&) = delete;

 private:
  Workers& workers_;
};

}  // namespace farspan::testing
