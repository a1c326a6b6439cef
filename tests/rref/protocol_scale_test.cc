// The rule under test: what an event costs does not grow with the number of live references.
#include "rref/protocol_cluster.h"
#include "support/sanitizers.h"

namespace farspan::rref::testing {
namespace {

// The former for memory and races, not for figures.
constexpr int kLive = farspan::testing::kSanitized ? 20'000 : 1'000'000;

// Nanoseconds for each life of a reference: made at another worker, passed on, fetched, dropped.
double cost_of_a_life(Cluster& net) {
  constexpr int kLives = 2000;
  double best = 1e18;
  for (int round = 0; round < 5; ++round) {
    const auto begun = Clock::now();
    for (int i = 0; i < kLives; ++i) {
      const HandleId id = net.make(0, 1);
      const HandleId there = net.pass(id, 0, 2);
      net.drop(0, id);
      net.deliver();
      net[1].wait_value(net.run(2), id.rref, Deadline::never(), net.now());
      net.drop(2, there);
      net.deliver();
    }
    const std::chrono::duration<double, std::nano> spent = Clock::now() - begun;
    best = std::min(best, spent.count() / kLives);
  }
  return best;
}

TEST(RRefScale, AnEventCostsTheSameAmongAMillionOthers) {
  Cluster net(3);
  const double alone = cost_of_a_life(net);
  std::vector<HandleId> live;
  for (int i = 0; i < kLive / 2; ++i) {
    live.push_back(net.make(0, 1));
    live.push_back(net.make(2, 1));
  }
  net.deliver();
  const double among = cost_of_a_life(net);
  RecordProperty("ns_alone", static_cast<int>(alone));
  RecordProperty("ns_among_many", static_cast<int>(among));
  // Expect: caches miss more often, and that is all; a walk over the tables would cost 1000 times
  // as much.
  EXPECT_LT(among, 20 * alone);

  // Their deletes go in frames of a window each.
  size_t frames = 0;
  for (size_t i = 0; i < live.size(); ++i) net.drop(i % 2 == 0 ? 0 : 2, live[i]);
  frames = net.deliver();
  EXPECT_LE(frames, 2 * (live.size() / ProtocolOptions().window + 2));
  net.expect_empty();
}

}  // namespace
}  // namespace farspan::rref::testing
