// DeviceWorkers: two workers with devices, for each way of a tensor from one to the other.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <vector>

#include <farspan/rpc/device/device_room.h>

#include "conformance/cluster.h"
#include "support/accelerator.h"
#include "support/workers.h"

namespace farspan::testing {

struct Way {
  const char* name;
  DeviceRoom::Reach reach;
};
inline constexpr Way kSameProcess{"SameProcess", DeviceRoom::Reach::kSameProcess};
inline constexpr Way kByName{"ByName", DeviceRoom::Reach::kByName};
inline constexpr Way kByHost{"ByHost", DeviceRoom::Reach::kByHost};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }
inline const auto name_of_way = [](const auto& way) { return std::string(way.param.name); };

// What functions keep in this process, until the test ends.
//
// Threading: any thread.
void keep_here(const at::Tensor& tensor);
std::vector<at::Tensor> kept_here();

// One device, or two where there are.
std::vector<int> some_devices();

// Workers of this process, or of two. Each test ends with devices as it found them.
class DeviceWorkers : public ::testing::TestWithParam<Way> {
 protected:
  DeviceWorkers();
  void TearDown() override;

  // Both anew, with these maps; what they tell of themselves decides about the way. In processes w1
  // has no maps, and allows all.
  void use(DeviceRecord::Maps of_w0, DeviceRecord::Maps of_w1,
           DeviceToDevice by_w0 = DeviceToDevice::kAllowed,
           DeviceToDevice by_w1 = DeviceToDevice::kAllowed);
  Worker& w0() { return processes_ ? processes_->driver() : (*workers_)[0]; }
  Worker& w1() { return (*workers_)[1]; }
  void lose_w1();
  // All anew, each in a process.
  void start_processes(const ClusterOptions& options = {.workers = 2});
  void lose(int rank) { processes_->kill(rank); }

 private:
  void end_workers();

  std::unique_ptr<Workers> workers_;
  std::unique_ptr<CurrentWorker> current_;
  std::unique_ptr<Cluster> processes_;
  bool lost_ = false;
};

// From now on, for a block, a worker in a process cannot open what others lend it.
class Unopened {
 public:
  Unopened(Worker& w0, int rank) : w0_(w0), rank_(rank) { let(false); }
  ~Unopened() { EXPECT_NO_THROW(let(true)); }
  Unopened(const Unopened&) = delete;
  Unopened& operator=(const Unopened&) = delete;

 private:
  void let(bool may);
  Worker& w0_;
  const int rank_;
};

// Also serves as the other process: what main() returns.
int run_device_tests(int argc, char** argv);

inline at::Tensor numbers(int64_t seed, int64_t count = 1000) {
  return at::arange(seed, seed + count, at::kLong);
}
inline bool is(const at::Tensor& x, const at::Tensor& expected) {
  return at::equal(x.cpu(), expected);
}

}  // namespace farspan::testing
