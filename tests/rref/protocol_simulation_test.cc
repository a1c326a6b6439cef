// The rules under test: rref/PROTOCOL.md, "What holds". For every seed:
// - no value is released while a worker holds a good handle to it, or one is under way;
// - no creation is run twice;
// - every wait ends;
// - when all handles are dropped and the network has healed, no worker remembers anything.
// FARSPAN_SIMULATION_SEEDS=100000 runs more seeds, FARSPAN_SIMULATION_FIRST=17 begins at one.
#include "rref/protocol_simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace farspan::rref::testing {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

void add(SimulationCounts& sum, const SimulationCounts& one) {
  sum.created += one.created, sum.passed += one.passed, sum.fetched += one.fetched;
  sum.released += one.released, sum.confirmed += one.confirmed;
  sum.lost += one.lost, sum.doubled += one.doubled;
  sum.crashes += one.crashes, sum.cuts += one.cuts, sum.fences += one.fences;
  sum.duplicate_creations += one.duplicate_creations, sum.late_creations += one.late_creations;
  sum.unborn += one.unborn, sum.taken_back += one.taken_back;
  sum.refused_released += one.refused_released, sum.failed_calls += one.failed_calls;
  sum.declined += one.declined;
}

// Tells why, with the end of what happened.
std::string retell(uint64_t seed) {
  Simulation again(seed, /*keep_trace=*/true);
  std::string text = "seed " + std::to_string(seed) + ": " + again.run() + "\n";
  const auto& trace = again.trace();
  for (size_t i = trace.size() > 200 ? trace.size() - 200 : 0; i < trace.size(); ++i) {
    text += "  " + trace[i] + "\n";
  }
  return text;
}

TEST(RRefSimulation, NothingLeaksAndNothingDiesEarly) {
  const uint64_t first = number_from("FARSPAN_SIMULATION_FIRST", 1);
  const uint64_t seeds = number_from("FARSPAN_SIMULATION_SEEDS", 2000);
  SimulationCounts sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Simulation simulation(seed, /*keep_trace=*/false);
    if (!simulation.run().empty()) FAIL() << retell(seed);
    add(sum, simulation.counts());
  }
  if (seeds < 1000) return;
  // Expect: it has been everywhere that the rules speak of.
  EXPECT_GT(sum.created, seeds);
  EXPECT_GT(sum.passed, seeds);
  EXPECT_GT(sum.confirmed, seeds);
  EXPECT_GT(sum.released, seeds);
  EXPECT_GT(sum.crashes, 0u);
  EXPECT_GT(sum.cuts, 0u);
  EXPECT_GT(sum.fences, 0u);
  EXPECT_GT(sum.duplicate_creations, 0u);
  EXPECT_GT(sum.late_creations, 0u);
  EXPECT_GT(sum.unborn, 0u);
  EXPECT_GT(sum.taken_back, 0u);
  EXPECT_GT(sum.refused_released, 0u);
  EXPECT_GT(sum.failed_calls, 0u);
  EXPECT_GT(sum.declined, 0u);
}

TEST(RRefSimulation, FollowsFromItsSeed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulation one(seed, true), two(seed, true);
    EXPECT_EQ(one.run(), two.run());
    EXPECT_EQ(one.trace(), two.trace());
  }
}

}  // namespace
}  // namespace farspan::rref::testing
