// Every collective, with a picture of who holds what before and after.
//
//   ./dev demo collectives
#include <farspan/farspan.h>
#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <sstream>

#include "console/run_options.h"

namespace dist = farspan::dist;
using torch::Tensor;

constexpr int kRanks = 4;

// "[0 10 20 30]"; rank r begins with r0, r1, .. so that every number tells where it comes from.
std::string text_of(const Tensor& tensor) {
  std::ostringstream out;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    out << (i == 0 ? "[" : " ") << tensor.view({-1})[i].item<int64_t>();
  }
  return out.str() + (tensor.numel() == 0 ? "[]" : "]");
}

// What all ranks hold, gathered at rank 0 and printed there, a line for each rank.
void show(const std::string& title, const Tensor& before, const Tensor& after) {
  std::vector<Tensor> all_before, all_after;
  if (dist::get_rank() == 0) {
    for (int rank = 0; rank < kRanks; ++rank) {
      all_before.push_back(torch::empty_like(before));
      all_after.push_back(torch::empty_like(after));
    }
  }
  dist::gather(before, all_before, 0);
  dist::gather(after, all_after, 0);
  if (dist::get_rank() != 0) return;
  std::printf("%s\n", title.c_str());
  for (size_t rank = 0; rank < kRanks; ++rank) {
    std::printf("  rank %zu   %-14s ->   %s\n", rank, text_of(all_before[rank]).c_str(),
                text_of(all_after[rank]).c_str());
  }
  std::printf("\n");
}

void run() {
  dist::init_process_group("cpu");
  const int rank = dist::get_rank();
  if (dist::get_world_size() != kRanks) {
    throw std::runtime_error("the pictures are of 4 ranks: start 4, as in mpirun -n 4");
  }
  const auto mine = [rank](int64_t count) { return torch::arange(count) + 10 * rank; };
  const auto room = [](int64_t count) { return torch::full({count}, -1, torch::kLong); };
  const auto rows = [](const Tensor& t) { return t.split(1); };  // one for each rank

  Tensor before = mine(2), after = before.clone();
  dist::broadcast(after, 1);
  show("broadcast from rank 1", before, after);

  after = before.clone();
  dist::all_reduce(after);
  show("all_reduce, SUM", before, after);

  after = before.clone();
  dist::all_reduce(after, {.op = dist::ReduceOp::kMax});
  show("all_reduce, MAX", before, after);

  after = before.clone();
  dist::reduce(after, 2);
  show("reduce to rank 2", before, after);

  after = room(2 * kRanks);
  dist::all_gather_into_tensor(after, before);
  show("all_gather", before, after);

  before = mine(1), after = room(kRanks);
  dist::gather(before, rank == 0 ? rows(after) : std::vector<Tensor>(), 0);
  show("gather at rank 0", before, after);

  before = mine(kRanks), after = room(1);
  dist::scatter(after, rank == 3 ? rows(before) : std::vector<Tensor>(), 3);
  show("scatter from rank 3", before, after);

  after = room(1);
  dist::reduce_scatter_tensor(after, before);
  show("reduce_scatter, SUM", before, after);

  after = room(kRanks);
  dist::all_to_all_single(after, before);
  show("all_to_all", before, after);

  // Some of the ranks; the others need not know of it.
  const dist::Group odd = dist::new_group({1, 3});
  before = mine(2), after = before.clone();
  const dist::Work work =
      odd->rank() >= 0 ? dist::all_reduce_async(after, {.group = odd}) : dist::Work();
  if (work.valid()) work.wait();  // whatever the program does meanwhile
  show("all_reduce in the group of ranks 1 and 3", before, after);

  dist::barrier();
  dist::destroy_process_group();
}

int main(int argc, char** argv) {
  CLI::App app("Every collective, with a picture of who holds what before and after. 4 ranks.");
  console::say_errors_in_one_line(app);
  CLI11_PARSE(app, argc, argv);
  return dist::record([] {
    if (dist::is_launched()) {  // by torchrun, mpirun, srun, or with RANK and the like
      run();
    } else {
      farspan::spawn(kRanks, [](int, int) { run(); });
    }
  });
}
