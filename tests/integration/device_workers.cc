#include "integration/device_workers.h"

#include <gmock/gmock.h>

#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <farspan/rpc/init/rooms.h>
#include <farspan/rpc/rpc.h>

#include "support/eventually.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

std::mutex kept_mutex;
std::vector<at::Tensor> kept;

// What is wrong with the devices of this process when no call has tensors on them.
std::vector<std::string> wrong_here() {
  {
    const std::lock_guard lock(kept_mutex);
    kept.clear();
  }
  settle_accelerator();
  AcceleratorUse use = accelerator_use();
  if (use.bytes > 0) use.faults.push_back(std::to_string(use.bytes) + " bytes are left");
  return use.faults;
}
FARSPAN_REGISTER_AS("device.wrong_here", wrong_here);
FARSPAN_REGISTER_AS("device.let_memory_be_opened", let_memory_be_opened);

int be_worker_with_devices() {
  accelerators();  // a worker has those that are there when it joins
  return be_worker();
}

}  // namespace

void keep_here(const at::Tensor& tensor) {
  const std::lock_guard lock(kept_mutex);
  kept.push_back(tensor);
}

std::vector<at::Tensor> kept_here() {
  const std::lock_guard lock(kept_mutex);
  return kept;
}

at::Tensor copied(const at::Tensor& x) { return x.clone(); }
int64_t device_of(const at::Tensor& x) { return x.is_cpu() ? -1 : x.get_device(); }
bool is_numbers(const at::Tensor& x, int64_t seed) { return is(x, numbers(seed, x.numel())); }
at::Tensor on_device(int64_t device, int64_t seed) {
  return numbers(seed).to(accelerator(static_cast<int>(device)));
}
void take(const at::Tensor&) {}

namespace {
std::optional<StalledStream> stalled_there;
}  // namespace
void stall_there() {
  numbers(0).to(accelerator(0));
  stalled_there.emplace();
}
void go_on_there() { stalled_there.reset(); }
bool last_kept_is(int64_t seed) { return is_numbers(kept_here().back(), seed); }
FARSPAN_REGISTER_AS("device.stall_there", stall_there);
FARSPAN_REGISTER_AS("device.go_on_there", go_on_there);
FARSPAN_REGISTER_AS("device.last_kept_is", last_kept_is);
FARSPAN_REGISTER_AS("device.copied", copied);
FARSPAN_REGISTER_AS("device.device_of", device_of);
FARSPAN_REGISTER_AS("device.is_numbers", is_numbers);
FARSPAN_REGISTER_AS("device.on_device", on_device);
FARSPAN_REGISTER_AS("device.take", take);

DeviceRoute way_of(const Worker& worker, int here) {
  for (const Route& route : worker.routes()) {
    for (const DeviceRoute& way : route.devices) {
      if (way.here == here) return way;
    }
  }
  return {-1, -1, false, "not known"};
}
uint64_t bytes_of_devices() { return current_worker().counters().bytes_of_devices; }
std::string way_back() { return way_of(current_worker(), 0).why_not_direct; }
FARSPAN_REGISTER_AS("device.bytes_of_devices", bytes_of_devices);
FARSPAN_REGISTER_AS("device.way_back", way_back);

std::string line_of(int device, const std::string& way) {
  const std::string place = "cuda:" + std::to_string(device);
  return "tensors go from " + place + " to " + place + " of worker 'w1'" + way;
}

std::vector<int> some_devices() { return accelerators() > 1 ? std::vector{0, 1} : std::vector{0}; }

DeviceWorkers::DeviceWorkers() {
  accelerators();  // as above
  if (GetParam().reach == DeviceRoom::Reach::kByName) {
    start_processes();
  } else {
    use({}, {});
  }
}

void DeviceWorkers::TearDown() {
  using ::testing::IsEmpty;
  if (processes_ && processes_->serves(1)) {
    std::vector<std::string> wrong;
    EXPECT_TRUE(eventually([&] {
      wrong = w0().rpc_sync(1, wrong_here);
      return wrong.empty();
    })) << ::testing::PrintToString(wrong);
    processes_->shutdown();
  }
  processes_.reset();
  end_workers();
  EXPECT_THAT(wrong_here(), IsEmpty());
  EXPECT_EQ(accelerator_use(), AcceleratorUse());
}

void DeviceWorkers::end_workers() {
  if (workers_ && !lost_) {
    std::thread other([&] { (*workers_)[1].shutdown(); });
    (*workers_)[0].shutdown();
    other.join();
  }
  current_.reset();
  workers_.reset();
}

void DeviceWorkers::use(DeviceRecord::Maps of_w0, DeviceRecord::Maps of_w1, DeviceToDevice by_w0,
                        DeviceToDevice by_w1) {
  if (GetParam().reach == DeviceRoom::Reach::kByName) {
    EXPECT_TRUE(of_w1.empty() && by_w1 == DeviceToDevice::kAllowed);
    return start_processes(
        {.workers = 2, .device_to_device = by_w0, .device_maps = std::move(of_w0)});
  }
  end_workers();
  workers_ =
      std::make_unique<Workers>(WorkersOptions{.transport = "unix", .settings = {}, .reactor = {}});
  current_ = std::make_unique<CurrentWorker>((*workers_)[0]);
  std::vector<DeviceRecord> records;
  for (auto* const maps : {&of_w0, &of_w1}) {
    records.push_back(DeviceRecord::of_this_process(std::move(*maps)));
    if (GetParam().reach != DeviceRoom::Reach::kByHost) continue;
    const std::string which = std::to_string(records.size());
    records.back().process += which;
    records.back().host += which;
  }
  for (int rank = 0; rank < 2; ++rank) {
    DeviceRoom::install((*workers_)[rank], records, rank == 0 ? by_w0 : by_w1);
    furnish((*workers_)[rank]);
  }
}

void DeviceWorkers::start_processes(const ClusterOptions& options) {
  processes_.reset();
  EXPECT_EQ(accelerator_use().events, 0u) << "of workers that have ended";
  processes_ = in_processes("shm").make(options);
  lost_ = false;
}

void DeviceWorkers::lose_w1() {
  lost_ = true;
  if (processes_) {
    lose(1);
  } else {
    w1().shutdown(false);
  }
}

void Unopened::let(bool may) {
  if (rank_ == 0) return let_memory_be_opened(may);
  w0_.rpc_sync(rank_, let_memory_be_opened, may);
}

int run_device_tests(int argc, char** argv) {
  return run_tests(argc, argv, {{"worker", be_worker_with_devices}});
}

}  // namespace farspan::testing
