// The nccl backend's ranks as objects of one process, over simulated devices and a simulated NCCL,
// without LibTorch: what NCCL would wait for, mix up or keep waits here, too.
#pragma once

#include <farspan/c10d/backends/nccl/nccl.h>
#include <farspan/c10d/backends/nccl/simulated/simulated_library.h>
#include <farspan/c10d/device/simulated/simulated.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "support/eventually.h"
#include "support/seeded_random.h"

namespace farspan::dist::nccl {

using namespace std::chrono_literals;
using Numbers = std::vector<int64_t>;

inline constexpr int kRanks = 3;
inline constexpr size_t kSize = kRanks;  // of vectors with one for each rank

// Numbers on a device, written and read by work of a stream.
class Array {
 public:
  Array(device::Devices& devices, device::Stream stream, const Numbers& numbers)
      : devices_(devices), stream_(stream), count_(numbers.size()) {
    memory_ = devices_.allocate(stream_.device, bytes());
    devices_.copy(stream_, memory_, numbers.data(), bytes());
    devices_.synchronize(stream_, Deadline::never());
  }
  ~Array() { devices_.release(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  Block block() const { return {static_cast<std::byte*>(memory_), count_}; }
  // One for each rank.
  std::vector<Block> parts(std::vector<size_t> counts = {}) const {
    if (counts.empty()) counts.assign(kSize, count_ / kSize);
    std::vector<Block> all;
    std::byte* data = block().data;
    for (const size_t count : counts) {
      all.push_back({data, count});
      data += count * sizeof(int64_t);
    }
    return all;
  }
  // Behind what the stream has been given.
  Numbers read() const {
    Numbers numbers(count_);
    devices_.copy(stream_, numbers.data(), memory_, bytes());
    devices_.synchronize(stream_, Deadline::never());
    return numbers;
  }

 private:
  size_t bytes() const { return count_ * sizeof(int64_t); }
  device::Devices& devices_;
  const device::Stream stream_;
  const size_t count_;
  void* memory_;
};

// One rank: its backend, a device of its own, and a stream there.
struct Rank {
  int number;
  std::shared_ptr<Backend> backend;
  device::Devices& devices;
  device::Stream stream;
  uint64_t sequence = 0;
  Millis timeout = 20s;

  Array array(const Numbers& numbers) const { return {devices, stream, numbers}; }

  Call next(Op op, size_t count, int root = -1) {
    Call call;
    call.signature.sequence = ++sequence;
    call.signature.op = op;
    call.signature.type = static_cast<uint8_t>(DType::INT64);
    call.signature.count = count;
    call.signature.root = root;
    call.signature.on_device = true;
    call.type = DType::INT64;
    call.deadline = Deadline::after(timeout);
    return call;
  }
  // `fn(call)` on the device; ready when that has done it.
  template <class Fn>
  Future<int> give(Call call, const Fn& fn) {
    DeviceCall on_device;
    on_device.stream = stream;
    call.on_device = &on_device;
    try {
      fn(call);
    } catch (const Error& error) {  // the first of its kind waits for the others, too
      return make_error_future<int>(error);
    }
    return on_device.ended;
  }
  Future<int> all_reduce(const Array& data) {
    return give(next(Op::kAllReduce, data.block().count),
                [&](const Call& call) { backend->all_reduce(call, data.block()); });
  }
  // What the stream is given next waits for `until`.
  void hold(const Future<void>& until) const {
    devices.then(stream, [until] { until.wait(); });
  }
};

class NcclRanks : public ::testing::Test {
 protected:
  // What stands between a rank and its control.
  using Wrap = std::function<std::shared_ptr<Backend>(int rank, std::shared_ptr<Backend> control)>;
  explicit NcclRanks(
      const dist::testing::HostOf& host_of = dist::testing::one_host,
      const Wrap& wrap = [](int, auto control) { return control; }) {
    const auto controls = dist::testing::make_job(kRanks, host_of);
    for (int rank = 0; rank < kRanks; ++rank) {
      auto backend = make_nccl_backend(library, wrap(rank, controls[static_cast<size_t>(rank)]),
                                       dist::testing::whole_job(rank, kRanks));
      ranks.push_back({rank, std::move(backend), *devices, devices->new_stream(rank)});
    }
  }
  ~NcclRanks() override {
    for (Rank& rank : ranks) {
      rank.backend.reset();
      devices->end_stream(rank.stream);
    }
    // Aborts are left to threads of their own.
    EXPECT_TRUE(farspan::testing::eventually(
        [&] { return library->communicators() == 0 && devices->events() == 0; }));
    EXPECT_THAT(devices->faults(), ::testing::IsEmpty());
    EXPECT_THAT(library->faults(), ::testing::IsEmpty());
  }

  void on_each(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks) threads.emplace_back([&] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // So that all have their communicators.
  void warm_up() {
    on_each([](Rank& rank) {
      const Array data = rank.array({1});
      rank.all_reduce(data).wait();
    });
  }

  const std::shared_ptr<device::SimulatedDevices> devices =
      device::make_simulated_devices({.devices = kRanks,
                                      .seed = farspan::testing::seed_of_run("devices' delays"),
                                      .most_late = Micros(300)});
  const std::shared_ptr<SimulatedLibrary> library = make_simulated_library(devices);
  std::vector<Rank> ranks;
};

// A promise is kept at the latest when this goes: what waits for it is a device, which must end.
class Held {
 public:
  ~Held() { go(); }
  Future<void> until() const { return promise_.future(); }
  void go() const { promise_.set_value(); }

 private:
  const Promise<void> promise_;
};

inline Numbers iota(int64_t first, size_t count) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace farspan::dist::nccl
