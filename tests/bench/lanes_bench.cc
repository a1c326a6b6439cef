// farspan's `./dev bench lanes`: tests/bench/README.md says what each case is.
//   lanes_bench [--one-line]
#include <ATen/ATen.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <string>

#include <unistd.h>

#include "bench/figures.h"
#include "support/two_hosts.h"

namespace {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int64_t numel(const at::Tensor& x) { return x.numel(); }
FARSPAN_REGISTER(add, numel);

constexpr size_t kSmallCalls = 2000, kLargeCalls = 30;
constexpr double kGigabyte = 1e9;

// Another thread, which repeats `work`.
class Busy {
 public:
  explicit Busy(const std::function<void()>& work)
      : ended_(std::async(std::launch::async, [this, work] {
          while (!done_) work();
        })) {}
  ~Busy() { done_ = true; }  // and ended_ waits
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  // Throws what `work` has thrown.
  void stop() {
    done_ = true;
    ended_.get();
  }

 private:
  std::atomic<bool> done_{false};
  std::future<void> ended_;
};

void measure() {
  const at::Tensor large = at::ones({64 << 20}, at::kByte), one = at::ones({1});
  const auto send_large = [&] { farspan::rpc_sync("there", numel, large); };
  const auto add_ones = [&] { farspan::rpc_sync("there", add, one, one); };
  bench::times_of(10, send_large);  // the first ones open the lanes
  const double us = bench::median(bench::times_of(kLargeCalls, send_large));
  bench::report("tensor 64 MiB between hosts", double(large.nbytes()) / (us * 1e-6) / kGigabyte,
                "GB/s");
  bench::report("small call between hosts p50",
                bench::median(bench::times_of(kSmallCalls, add_ones)), "us");
  Busy busy(send_large);
  const auto times = bench::times_of(kSmallCalls, add_ones);
  busy.stop();
  bench::report("small call beside 64 MiB tensors p50", bench::median(times), "us");
  bench::report("small call beside 64 MiB tensors p99", bench::percentile(times, 0.99), "us");
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_one_line = argc == 2 && std::strcmp(argv[1], "--one-line") == 0;
  if (argc != 1 && !has_one_line) {
    std::fprintf(stderr, "usage: lanes_bench [--one-line]\n");
    return 2;
  }
  const auto meeting =
      std::filesystem::temp_directory_path() / ("lanes_bench." + std::to_string(getpid()));
  farspan::testing::run_on_two_hosts(
      meeting,
      [&](farspan::WorkerOptions& options) {
        if (has_one_line) options.lanes = 0;
      },
      [](int rank) {
        if (rank == 0) measure();
      });
  std::filesystem::remove(meeting);
}
