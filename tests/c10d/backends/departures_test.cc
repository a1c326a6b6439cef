// The rule under test: c10d/backends/cpu/departures.h.
#include <farspan/c10d/backends/cpu/departures.h>

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/hash_store.h>

namespace farspan::dist::cpu {
namespace {

using namespace std::chrono_literals;

bool has_left(Departures& departures, int rank) {
  std::promise<bool> answer;
  departures.ask(rank, [&](bool has) { answer.set_value(has); });
  return answer.get_future().get();
}

TEST(Departures, WhoAnnouncesItHasLeftWhenItStops) {
  const auto store = std::make_shared<HashStore>();
  Departures one(store, 1), two(store, 2);
  one.announce();
  EXPECT_FALSE(has_left(two, 1));
  one.stop();
  EXPECT_TRUE(has_left(two, 1));
}

TEST(Departures, WhoStopsWithoutAWordHasNotLeft) {
  const auto store = std::make_shared<HashStore>();
  Departures one(store, 1), two(store, 2);
  one.stop();
  EXPECT_FALSE(has_left(two, 1));
}

TEST(Departures, TheStoreIsLetGoAtTheEnd) {
  const auto store = std::make_shared<HashStore>();
  Departures one(store, 1);
  const long users = store.use_count();
  one.announce();
  one.stop();
  EXPECT_LT(store.use_count(), users);
  one.ask(2, [](bool) { FAIL() << "after stop()"; });
}

// A user's own, which does the same whatever it is asked.
class OddStore final : public Store {
 public:
  using Act = std::function<void(Deadline)>;
  explicit OddStore(Act act) : Store(60s), act_(std::move(act)) {}
  std::string address() const override { return "odd"; }

 private:
  template <class Value = int>
  Value act(Deadline deadline) const {
    act_(deadline);
    return {};
  }
  using Text = std::string;
  using Texts = std::vector<std::string>;
  std::shared_ptr<Store> do_clone() override { return nullptr; }
  void do_set(const Text&, const Text&, Deadline by) override { act(by); }
  Text do_get(const Text&, Deadline by) override { return act<Text>(by); }
  int64_t do_add(const Text&, int64_t, Deadline by) override { return act(by); }
  std::optional<Text> do_compare_set(const Text&, const Text&, const Text&, Deadline by) override {
    return act<Text>(by);
  }
  bool do_check(const Texts&, Deadline by) override { return act<bool>(by); }
  void do_wait(const Texts&, Deadline by) override { act(by); }
  bool do_delete_key(const Text&, Deadline by) override { return act<bool>(by); }
  void do_append(const Text&, const Text&, Deadline by) override { act(by); }
  Texts do_multi_get(const Texts&, Deadline by) override { return act<Texts>(by); }
  void do_multi_set(const Texts&, const Texts&, Deadline by) override { act(by); }
  int64_t do_num_keys(Deadline by) override { return act(by); }
  Texts do_list_keys(Deadline by) override { return act<Texts>(by); }

  const Act act_;
};

// Its server is stopped, say: each call takes all of its time.
TEST(Departures, AStoreThatDoesNotAnswerIsAskedOnceForManyDeaths) {
  std::atomic<int> asked{0};
  Departures one(std::make_shared<OddStore>([&](Deadline by) {
                   ++asked;
                   std::this_thread::sleep_until(by.at());
                   throw Error(Code::kTimeout, "no answer");
                 }),
                 1);
  const TimePoint begun = Clock::now();
  for (int rank = 2; rank < 10; ++rank) EXPECT_FALSE(has_left(one, rank));
  EXPECT_LT(Clock::now() - begun, 2s);
  EXPECT_EQ(asked, 1);
}

TEST(Departures, AUsersStoreMayThrowAnything) {
  Departures one(std::make_shared<OddStore>([](Deadline) { throw std::runtime_error("broken"); }),
                 1);
  EXPECT_FALSE(has_left(one, 2));
  one.announce();
  one.stop();
}

TEST(Departures, WithoutAStoreNobodyKnows) {
  Departures one(nullptr, 1);
  one.announce();
  EXPECT_FALSE(has_left(one, 2));
}

}  // namespace
}  // namespace farspan::dist::cpu
