// What the ranks of mpi_start_test.py and mpi_lost_ranks_test.py do, by name, one after the other:
// mpi_ranks RULE.. Status 0: all is as it should be.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <thread>

#include <farspan/c10d/backends/mpi/library.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/init/init.h>

#include "support/errors.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;

void expect(bool is_true, const std::string& what) {
  if (is_true) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::fflush(stderr);
  std::_Exit(9);
}

bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

void add_up() {
  const at::Tensor x = at::full({3}, dist::get_rank() + 1.0);
  dist::all_reduce(x);
  const int ranks = dist::get_world_size();
  expect(x[0].item<double>() == ranks * (ranks + 1) / 2.0, "the sum");
}

int starts_and_ends_several_times() {
  for (int start = 0; start < 3; ++start) {
    const dist::Group group = dist::init_process_group("mpi");
    expect(group->backend_name() == "mpi", "the backend");
    add_up();
    dist::destroy_process_group();
  }
  return 0;
}

int refuses_another_membership() {
  dist::InitOptions options;
  options.world_size = 7;
  const Error error = error_of([&] { dist::init_process_group("mpi", options); });
  expect(error.code() == Code::kInvalidArgument, error.what());
  expect(contains(error, "world_size is 7, and the launcher of 'mpi' says 3"), error.what());
  return 0;
}

// What mpirun has not started is a world of one to MPI, whatever else says that there are more.
int refuses_to_be_alone_in_a_larger_job() {
  const auto expect_refused = [](const dist::InitOptions& options, const std::string& why) {
    const Error error = error_of([&] { dist::init_process_group("mpi", options); });
    expect(error.code() == Code::kInvalidArgument && contains(error, why), error.what());
    expect(contains(error, "mpirun"), error.what());
  };
  expect_refused({.init_method = "tcp://127.0.0.1:1?rank=0&world_size=2"},
                 "world_size in the URL is 2, and the launcher of 'mpi' says 1");
  setenv("WORLD_SIZE", "2", 1);
  setenv("RANK", "0", 1);
  expect_refused({}, "WORLD_SIZE is 2, and the launcher of 'mpi' says 1");
  setenv("WORLD_SIZE", "1", 1);
  dist::init_process_group("mpi");
  dist::destroy_process_group();
  return 0;
}

// Twice: MPI itself has to begin the first time.
int waits_for_who_is_late_and_names_him() {
  for (int start = 0; start < 2; ++start) {
    bool is_late = std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "1";
    if (is_late) std::this_thread::sleep_for(1500ms);
    dist::InitOptions options;
    options.init_timeout = is_late ? 30s : 500ms;
    try {
      dist::init_process_group("mpi", options);
      expect(is_late, "rank 0 has waited");
    } catch (const Error& error) {
      expect(error.code() == Code::kTimeout, error.what());
      expect(start == 0 || contains(error, "rank 1 of 3 did not come"), error.what());
      options.init_timeout = 30s;
      dist::init_process_group("mpi", options);
    }
    add_up();
    dist::destroy_process_group();
  }
  return 0;
}

int ends_with_the_programs_own_mpi() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  const dist::Group group = dist::init_process_group("mpi");
  add_up();
  MPI_Finalize();
  expect(code_of([] { dist::barrier(); }) == Code::kShutdown, "an operation after MPI's end");
  dist::destroy_process_group();
  expect(code_of([] { dist::init_process_group("mpi"); }) == Code::kInvalidArgument,
         "a start then");
  return 0;
}

int needs_mpi_for_several_threads() {
  MPI_Init(nullptr, nullptr);
  const Error error = error_of([] { dist::init_process_group("mpi"); });
  expect(error.code() == Code::kInvalidArgument, error.what());
  expect(contains(error, "MPI_THREAD_MULTIPLE"), error.what());
  MPI_Finalize();
  return 0;
}

// What nobody asks for waits at the sender when the receiver has enough of it.
int keeps_few_messages_that_nobody_asks_for() {
  constexpr int kMessages = 120;  // 7.5 MiB
  const auto number = [](int i) { return at::full({16'384}, i, at::kInt); };
  dist::init_process_group("mpi");
  if (dist::get_rank() == 0) {
    std::vector<dist::Work> works;
    for (int i = 0; i < kMessages; ++i) works.push_back(dist::isend(number(i), 1));
    dist::barrier();
    expect(works[50].is_completed() && !works[70].is_completed(), "4 MiB are on their way");
    for (const dist::Work& work : works) work.wait();
  } else {
    dist::barrier();
  }
  for (int i = 0; dist::get_rank() == 1 && i < kMessages; ++i) {
    const at::Tensor got = at::zeros({16'384}, at::kInt);
    dist::recv(got, 0);
    expect(at::equal(got, number(i)), "message " + std::to_string(i));
  }
  // What comes for a group that is left is kept no longer.
  for (int round = 0; round < 4; ++round) {
    auto group = dist::new_group({0, 1});
    for (int i = 0; dist::get_rank() == 0 && i < 40; ++i) {
      expect(dist::isend(number(i), 1, {.group = group}).is_completed(), "there is room again");
    }
    dist::barrier();
    group.reset();
    dist::barrier();
  }
  dist::destroy_process_group();
  return 0;
}

// Rank 1 does not come to its end.
void run_out_of_time() {
  dist::init_process_group("mpi");
  add_up();
  if (dist::get_rank() == 1) std::this_thread::sleep_for(1000s);
  const Error error = error_of([] { dist::barrier({.timeout = 200ms}); });
  expect(error.code() == Code::kTimeout && contains(error, "rank 1"), error.what());
  std::printf("out of time\n");
}

int a_failure_ends_the_job() {
  run_out_of_time();
  return 3;
}

// The process would end well, but not all others come to their end.
int who_has_run_out_of_time_does_not_wait_for_ever() {
  dist::mpi::set_farewell(300ms);
  run_out_of_time();
  return 0;
}

// All know of it, and the processes end as they should, without leaving the group.
int an_error_that_was_caught_ends_nothing() {
  dist::init_process_group("mpi");
  const bool is_late = dist::get_rank() == 1;
  if (is_late) {
    // Meanwhile it takes in that the others have come, and then for a while nothing.
    const dist::MessageOptions nobody_sends{.tag = 1, .timeout = 100ms};
    expect(code_of([&] { dist::recv(at::zeros({1}), 0, nobody_sends); }) == Code::kTimeout, "recv");
    std::this_thread::sleep_for(500ms);
  }
  const Error error = error_of([] { dist::barrier({.timeout = 200ms}); });
  expect(error.code() == Code::kTimeout, error.what());
  const dist::Group again = dist::new_group({0, 1, 2});
  expect(code_of([&] { dist::barrier({.group = again}); }) == Code::kOk, "a new group");
  return 0;
}

// Collectives of all sizes without an end, but that of the group, of which each rank says what it
// got, and after which time. Rank 1 may stop before one of its calls.
int work_until_a_rank_is_lost(uint64_t stops_before) {
  dist::InitOptions options;
  options.timeout = 3s;
  const dist::Group group = dist::init_process_group("mpi", options);
  const auto say = [&](const char* what) {
    std::printf("rank %d of process %d %s\n", group->rank(), getpid(), what);
    std::fflush(stdout);
  };
  const at::Tensor all = at::ones({1 << 20});
  TimePoint called;
  const Error error = error_of([&] {
    while (true) {
      const uint64_t turn = group->sequence() + 1;
      if (turn == 20) say("works");
      if (turn == stops_before && group->rank() == 1) raise(SIGSTOP);
      const at::Tensor x = all.narrow(0, 0, std::vector{3, 3000, 100'000, 1 << 20}[turn % 4]);
      called = Clock::now();
      turn / 4 % 2 ? dist::all_reduce(x) : dist::broadcast(x, 0);
    }
  });
  say((describe(Clock::now() - called) + " later: " + error.what()).c_str());
  group->abort("a rank is lost");
  expect(contains(error_of([] { dist::barrier(); }), "failed before"), "the group is of no use");
  return 3;
}

int work_until_one_is_killed() { return work_until_a_rank_is_lost(0); }
int work_until_one_stops_before_call_30() { return work_until_a_rank_is_lost(30); }

const std::map<std::string, std::function<int()>> kRules = {
#define RULE(name) \
  { #name, name }
    RULE(starts_and_ends_several_times),
    RULE(refuses_another_membership),
    RULE(refuses_to_be_alone_in_a_larger_job),
    RULE(waits_for_who_is_late_and_names_him),
    RULE(ends_with_the_programs_own_mpi),
    RULE(needs_mpi_for_several_threads),
    RULE(a_failure_ends_the_job),
    RULE(an_error_that_was_caught_ends_nothing),
    RULE(keeps_few_messages_that_nobody_asks_for),
    RULE(work_until_one_is_killed),
    RULE(work_until_one_stops_before_call_30),
    RULE(who_has_run_out_of_time_does_not_wait_for_ever)
#undef RULE
};

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  at::set_num_threads(1);
  int status = argc > 1 ? 0 : 2;
  for (int i = 1; i < argc && status == 0; ++i) status = farspan::testing::kRules.at(argv[i])();
  return status;
}
