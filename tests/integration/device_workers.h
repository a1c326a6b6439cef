// DeviceWorkers: two workers with devices, for each way of a tensor from one to the other.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/log.h>
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

// Functions that workers call.
at::Tensor copied(const at::Tensor& x);
int64_t device_of(const at::Tensor& x);  // -1: the processor's
bool is_numbers(const at::Tensor& x, int64_t seed);
at::Tensor on_device(int64_t device, int64_t seed);
void take(const at::Tensor& x);

// Holds up the calling thread's current stream of device 0.
class StalledStream {
 public:
  StalledStream() { hold_up_current_stream(accelerator(0), go_.future()); }
  ~StalledStream() { go_.set_value(); }
  StalledStream(const StalledStream&) = delete;
  StalledStream& operator=(const StalledStream&) = delete;

 private:
  const Promise<void> go_;
};

// Of a worker that is called: its devices do nothing more until they are let go.
void stall_there();
void go_on_there();
bool last_kept_is(int64_t seed);

// How a worker's tensors go from its device `here` to the one other worker.
DeviceRoute way_of(const Worker& worker, int here);
// Of the worker that is called: why its tensors do not go straight to w0; and what has come so.
std::string way_back();
uint64_t bytes_of_devices();

// What this process logs of devices, for a block.
class LoggedWays {
 public:
  LoggedWays() {
    set_log_level(LogLevel::kInfo);
    set_log_sink([log = log_](LogLevel, std::string_view room, std::string_view text) {
      if (room != "device") return;
      const std::lock_guard lock(log->mutex);
      log->lines.emplace_back(text);
    });
  }
  ~LoggedWays() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  LoggedWays(const LoggedWays&) = delete;
  LoggedWays& operator=(const LoggedWays&) = delete;

  std::vector<std::string> to_w1() const {
    std::vector<std::string> some;
    const std::lock_guard lock(log_->mutex);
    for (const std::string& line : log_->lines) {
      if (line.find("worker 'w1'") != std::string::npos) some.push_back(line);
    }
    return some;
  }

 private:
  struct Log {  // the sink may outlive this, in a thread that has yet to end
    std::mutex mutex;
    std::vector<std::string> lines;
  };
  const std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

// The line of tensors that arrive on the device of the same number.
std::string line_of(int device, const std::string& way);

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
