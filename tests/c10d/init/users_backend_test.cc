// The rule under test: c10d/group/backend.h: a program may make a backend of its own known, and use
// it by name.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <farspan/c10d/backends/cpu/cpu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/init/init.h>
#include <farspan/c10d/store/hash_store.h>

#include "c10d/init/alone.h"
#include "c10d/store/temporary_folder.h"
#include "support/errors.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using dist::Backend;
using dist::Block;
using dist::Call;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

// What was called, of all groups of this process.
class Counts {
 public:
  static Counts& the() {
    static Counts counts;
    return counts;
  }
  void add(const std::string& operation) {
    MutexLock lock(mutex_);
    ++counts_[operation];
  }
  std::map<std::string, int> take() {
    MutexLock lock(mutex_);
    return std::exchange(counts_, {});
  }

 private:
  Mutex mutex_;
  std::map<std::string, int> counts_ FARSPAN_GUARDED_BY(mutex_);
};

// Counts what is called, and lets another backend do it.
class Counting final : public Backend {
 public:
  explicit Counting(std::shared_ptr<Backend> next) : next_(std::move(next)) {}

  std::string_view name() const noexcept override { return "counting"; }
  std::string name_of(int rank) const override { return next_->name_of(rank); }
  void broadcast(const Call& call, Block data) override {
    count("broadcast").broadcast(call, data);
  }
  void all_reduce(const Call& call, Block data) override {
    count("all_reduce").all_reduce(call, data);
  }
  void reduce(const Call& call, Block data) override { count("reduce").reduce(call, data); }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    count("all_gather").all_gather(call, in, out);
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    count("gather").gather(call, in, out);
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    count("scatter").scatter(call, in, out);
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    count("reduce_scatter").reduce_scatter(call, in, out);
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    count("all_to_all").all_to_all(call, in, out);
  }
  void barrier(const Call& call) override { count("barrier").barrier(call); }
  Future<int> send(const dist::Message& message, Block data) override {
    return count("send").send(message, data);
  }
  Future<int> recv(const dist::Message& message, Block data) override {
    return count("recv").recv(message, data);
  }
  void abort(const Error& why, uint64_t since) noexcept override { next_->abort(why, since); }
  void leave() noexcept override { next_->leave(); }
  std::shared_ptr<Backend> subgroup(dist::GroupSpec spec) override {
    return std::make_shared<Counting>(count("subgroup").subgroup(std::move(spec)));
  }

 private:
  Backend& count(const std::string& operation) {
    Counts::the().add(operation);
    return *next_;
  }

  const std::shared_ptr<Backend> next_;
};

std::shared_ptr<Backend> make_counting(const dist::BackendContext& context) {
  return std::make_shared<Counting>(dist::cpu::make_cpu_backend(context));
}

// Once for the process, as the tests may run many times.
void know_counting() {
  static const bool known = [] {
    dist::register_backend("counting", make_counting);
    return true;
  }();
  static_cast<void>(known);
}

// A process of two.
int use_counting() {
  know_counting();
  dist::InitOptions options;
  options.init_method = std::getenv("INIT_METHOD");
  const dist::Group world = dist::init_process_group("counting", options);
  EXPECT_EQ(world->backend_name(), "counting");
  const int rank = dist::get_rank(), other = 1 - rank;
  const at::Tensor x = at::full({3}, rank + 1.0), y = at::zeros({3}), all = at::zeros({2, 3});
  const auto at_root = [&](const std::vector<at::Tensor>& list) {
    return rank == 0 ? list : std::vector<at::Tensor>();
  };
  dist::all_gather_into_tensor(all, x);
  EXPECT_EQ(all.sum().item<float>(), 9);
  dist::gather(x, at_root({all[1], all[0]}), 0);
  dist::scatter(y, at_root({all[1], all[0]}), 0);
  EXPECT_TRUE(at::equal(y, x));
  dist::all_to_all({all[0], all[1]}, {x, x});
  dist::reduce_scatter(y, {all[0], all[1]});
  EXPECT_TRUE(at::equal(y, x * 2));
  dist::broadcast(y, 1);
  dist::reduce(y, 0);
  EXPECT_EQ(y[0].item<float>(), rank == 0 ? 8 : 4);
  dist::all_reduce(x);
  const dist::Work work = dist::isend(x, other);
  dist::recv(y, other);
  work.wait();
  dist::all_reduce_async(y, {.group = dist::new_group({1, 0})}).wait();
  EXPECT_TRUE(at::equal(y, at::full({3}, 6.0)));
  dist::barrier();
  dist::destroy_process_group();
  const std::map<std::string, int> once_each = {
      {"all_gather", 1},     {"gather", 1},     {"scatter", 1},  {"all_to_all", 1},
      {"reduce_scatter", 1}, {"broadcast", 1},  {"reduce", 1},   {"send", 1},
      {"recv", 1},           {"all_reduce", 2}, {"subgroup", 1}, {"barrier", 1}};
  EXPECT_EQ(Counts::the().take(), once_each);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(UsersBackend, DoesAllOperationsOfAJobThatNamesIt) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<Process>(
        "use_counting", Process::Environment{{"INIT_METHOD", "file://" + folder.file("meet")},
                                             {"WORLD_SIZE", "2"},
                                             {"RANK", rank}}));
  }
  for (const auto& rank : ranks) {
    const Process::End end = rank->wait(60s);
    EXPECT_EQ(end.status, 0) << end.output;
  }
}

TEST(UsersBackend, MayComeWithALauncherThatNumbersTheRanks) {
  static int meetings = 0;
  static const bool known = [] {
    const auto meet = [](Deadline) {
      dist::GroupSpec world;
      world.name = "meeting " + std::to_string(++meetings);
      world.rank = 0;
      world.ranks = {0};
      return world;
    };
    const auto make = [](const dist::BackendContext& context) {
      EXPECT_EQ(context.store, nullptr) << "nobody has met in one";
      EXPECT_EQ(context.group.name, "meeting " + std::to_string(meetings));
      dist::BackendContext with_store = context;
      with_store.store = std::make_shared<dist::HashStore>();
      return make_counting(with_store);
    };
    dist::register_backend("launched", make, meet);
    return true;
  }();
  static_cast<void>(known);
  const int before = meetings;
  const dist::Group group = dist::init_process_group("launched");
  EXPECT_EQ(meetings, before + 1);
  EXPECT_EQ(group->name(), "meeting " + std::to_string(meetings));
  const at::Tensor x = at::ones({2});
  Counts::the().take();
  dist::all_reduce(x);
  EXPECT_EQ(Counts::the().take(), (std::map<std::string, int>{{"all_reduce", 1}}));
  dist::destroy_process_group();
}

TEST(UsersBackend, HasANameOfItsOwnThatErrorsList) {
  know_counting();
  EXPECT_EQ(code_of([] { dist::register_backend("counting", make_counting); }),
            Code::kAlreadyExists);
  const Error error = error_of([] { dist::init_process_group("other", alone()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("counting"));
}

TEST(UsersBackend, CannotTakeTheNameOfOneThatIsThere) {
  for (const char* name : {"cpu", "mpi"}) {
    const Error error = error_of([&] { dist::register_backend(name, make_counting); });
    EXPECT_EQ(error.code(), Code::kAlreadyExists) << name;
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  // Expect: it is the one that it was.
  EXPECT_EQ(dist::init_process_group("cpu", alone())->backend_name(), "cpu");
  dist::destroy_process_group();
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  at::set_num_threads(1);
  return farspan::testing::run_tests(argc, argv,
                                     {{"use_counting", farspan::testing::use_counting}});
}
