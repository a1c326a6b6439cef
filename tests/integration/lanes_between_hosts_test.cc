// The rule under test: rpc/options.h, `lanes`: large tensors between hosts go by lanes, there and
// back, and the line is free for small calls.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "c10d/store/temporary_folder.h"
#include "support/process_use.h"
#include "support/two_hosts.h"

namespace farspan::testing {
namespace {

constexpr int64_t kCount = 3'000'000;  // float32: 12 MB

at::Tensor next(const at::Tensor& x) { return x + 1; }
int64_t numel(const at::Tensor& x) { return x.numel(); }
at::Tensor make_large() { return at::ones({256 << 20}, at::kByte); }
FARSPAN_REGISTER_AS("lanes.next", next);
FARSPAN_REGISTER_AS("lanes.numel", numel);
FARSPAN_REGISTER_AS("lanes.make_large", make_large);
FARSPAN_REGISTER_AS("lanes.peak_growth", peak_growth);

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

const Route& route_to(const std::string& name, std::vector<Route>& routes) {
  routes = current_worker().routes();
  for (const Route& route : routes) {
    if (route.worker == name) return route;
  }
  throw std::runtime_error("no route to " + name);
}

void call_there(int64_t count) {
  const at::Tensor x = at::arange(count, at::kFloat);
  check(at::equal(rpc_sync("there", next, x), x + 1), "another tensor came back");
}

// The first ones do not wait for lanes.
void call_until_there_are_lanes() {
  std::vector<Route> routes;
  int calls = 0;
  do {
    check(++calls < 1000, "there are no lanes");
    call_there(kCount);
  } while (route_to("there", routes).lanes < 4);
}

void run(const std::function<void(WorkerOptions&)>& change, const std::function<void()>& here) {
  const TemporaryFolder folder;
  EXPECT_NO_THROW(run_on_two_hosts(folder.file("meet"), change, [&](int rank) {
    if (rank == 0) here();
  }));
}

TEST(LanesBetweenHosts, CarryLargeTensorsThereAndBack) {
  run([](WorkerOptions&) {},
      [] {
        std::vector<Route> routes;
        call_there(1000);
        check(route_to("there", routes).lanes == 0, "small tensors need no lanes");
        call_until_there_are_lanes();
        const uint64_t before = route_to("there", routes).bytes_by_lanes;
        std::atomic<bool> done{false};
        std::thread small([&] {
          while (!done) call_there(1);
        });
        for (int calls = 0; calls < 20; ++calls) call_there(kCount);
        done = true;
        small.join();
        const uint64_t by_lanes = route_to("there", routes).bytes_by_lanes - before;
        check(by_lanes >= 20 * 2 * kCount * sizeof(float), "large tensors went another way");
      });
}

TEST(LanesBetweenHosts, CanBeDoneWithout) {
  run([](WorkerOptions& options) { options.lanes = 0; },
      [] {
        std::vector<Route> routes;
        for (int calls = 0; calls < 3; ++calls) call_there(kCount);
        check(route_to("there", routes).lanes == 0, "lanes were not wanted");
      });
}

TEST(LanesBetweenHosts, TakeNoMemoryBesideOneCopyAtTheReceiver) {
  run([](WorkerOptions&) {},
      [] {
        const CallOptions patient{std::chrono::minutes(2)};
        call_until_there_are_lanes();
        const auto is_one = [](int64_t mebibytes) { return mebibytes >= 256 && mebibytes < 320; };
        const at::Tensor x = make_large();
        peak_growth();
        rpc_sync("there", peak_growth);
        check(rpc_sync("there", patient, numel, x) == x.numel(), "another tensor came");
        check(is_one(rpc_sync("there", peak_growth)), "not one copy at the callee");
        check(peak_growth() < 64, "a copy at the caller");
        const at::Tensor y = rpc_sync("there", patient, make_large);
        check(y.numel() == x.numel(), "another tensor came back");
        check(is_one(rpc_sync("there", peak_growth)), "a copy beside the result");
        check(is_one(peak_growth()), "not one copy of the result");
      });
}

}  // namespace
}  // namespace farspan::testing
