// An all_reduce written by hand from isend and irecv, held against the library's.
//
//   ./dev demo ring_all_reduce
#include <farspan/farspan.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>

#include "console/run_options.h"

namespace dist = farspan::dist;
using torch::Tensor;

// Each rank talks to its two neighbours only. In n-1 steps the sum of each part goes once round the
// ring and grows; in n-1 more each finished part goes round again. Every rank sends 2 (n-1)/n of
// the tensor, however many ranks there are.
void ring_all_reduce(Tensor& tensor) {
  const int rank = dist::get_rank(), size = dist::get_world_size();
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;
  std::vector<Tensor> parts = tensor.view({-1}).tensor_split(size);
  const auto part = [&](int number) -> Tensor& {
    return parts[static_cast<size_t>((number % size + size) % size)];
  };
  for (int step = 0; step < size - 1; ++step) {
    Tensor& mine = part(rank - step - 1);
    const Tensor theirs = torch::empty_like(mine);
    const dist::Work sent = dist::isend(part(rank - step), right);
    const dist::Work received = dist::irecv(theirs, left);
    received.wait();
    mine += theirs;
    sent.wait();
  }
  for (int step = 0; step < size - 1; ++step) {
    const dist::Work sent = dist::isend(part(rank + 1 - step), right);
    const dist::Work received = dist::irecv(part(rank - step), left);
    received.wait();
    sent.wait();
  }
}

template <class Work>
double milliseconds(const Work& work) {
  constexpr int kTimes = 20;
  dist::barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kTimes; ++i) work();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / kTimes;
}

void run() {
  torch::set_num_threads(1);
  dist::init_process_group("cpu");
  const int rank = dist::get_rank(), ranks = dist::get_world_size();
  bool all_equal = true;
  for (const int64_t count : {5, 1'000, 1'000'003}) {
    // Whole numbers: their sums are exact, in whichever order they are added.
    Tensor by_hand = torch::arange(count, torch::kFloat64) * (rank + 1);
    const Tensor library = by_hand.clone();
    ring_all_reduce(by_hand);
    dist::all_reduce(library);
    const bool equal = torch::equal(by_hand, library);
    all_equal = all_equal && equal;
    if (rank == 0)
      std::printf("%8lld numbers: %s\n", static_cast<long long>(count),
                  equal ? "the same" : "DIFFERENT");
  }
  Tensor tensor = torch::zeros({1'000'000});
  const double by_hand = milliseconds([&] { ring_all_reduce(tensor); });
  const double library = milliseconds([&] { dist::all_reduce(tensor); });
  if (rank == 0) {
    std::printf("1,000,000 floats among %d ranks: %.2f ms by hand, %.2f ms all_reduce\n", ranks,
                by_hand, library);
  }
  dist::destroy_process_group();
  if (!all_equal) throw std::runtime_error("the sums differ");
}

int main(int argc, char** argv) {
  int ranks = 4;
  CLI::App app("An all_reduce written by hand from isend and irecv, held against the library's.");
  app.add_option("--ranks", ranks, "processes, without a launcher")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  console::say_errors_in_one_line(app);
  CLI11_PARSE(app, argc, argv);
  return dist::record([&] {
    if (dist::is_launched()) {  // by torchrun, mpirun, srun, or with RANK and the like
      run();
    } else {
      farspan::spawn(ranks, [](int, int) { run(); });
    }
  });
}
