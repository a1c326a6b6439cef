// The rules under test: c10d/base/unfinished.h.
#include <farspan/c10d/base/unfinished.h>

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace farspan::testing {
namespace {

// Counts down in its thread what others leave of it.
class Pile final : Unfinished {
 public:
  explicit Pile(int size) : left_(size) {}
  bool take() { return left_ > 0 && left_-- > 0; }
  int given_away() const { return given_away_; }

 private:
  void hand_over() noexcept override { given_away_ += std::exchange(left_, 0); }
  int left_;
  int given_away_ = 0;
};

void fetch_elsewhere() {
  std::thread([] { Unfinished::fetch_lent(); }).join();
}

TEST(Unfinished, IsGivenAwayByItsThreadOnly) {
  Pile outer(3), inner(2);
  fetch_elsewhere();
  std::thread([] { Unfinished::hand_over_all(); }).join();
  EXPECT_EQ(outer.given_away() + inner.given_away(), 0);
  Unfinished::hand_over_all();
  EXPECT_EQ(outer.given_away(), 3);
  EXPECT_EQ(inner.given_away(), 2);
  Unfinished::hand_over_all();
  EXPECT_EQ(outer.given_away(), 3);
}

TEST(Unfinished, IsFetchedByOthersWhileItIsLent) {
  Pile outer(3);
  {
    const Unfinished::Lent lent;
    EXPECT_TRUE(lent);
    const Pile later(1);  // taken inside of what takes long
    fetch_elsewhere();
    EXPECT_EQ(outer.given_away(), 3);
    EXPECT_EQ(later.given_away(), 0);
  }
  Pile inner(2);
  fetch_elsewhere();
  EXPECT_EQ(inner.given_away(), 0);
}

TEST(Unfinished, IsLentOnce) {
  EXPECT_FALSE(Unfinished::Lent());
  const Pile outer(1);
  const Unfinished::Lent lent;
  EXPECT_TRUE(lent);
  EXPECT_FALSE(Unfinished::Lent()) << "nothing more has been taken";
  {
    const Pile inner(2);
    const Unfinished::Lent another;
    EXPECT_TRUE(another);
    fetch_elsewhere();
    EXPECT_EQ(inner.given_away(), 2);
  }
  EXPECT_FALSE(Unfinished::Lent());
}

// Every piece is either done by its thread or given away, whenever others come.
TEST(Unfinished, IsNeitherLostNorDoneTwice) {
  constexpr int kSize = 20'000;
  std::atomic<int> working{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      Pile pile(kSize);
      int done = 0;
      while (pile.take()) {
        ++done;
        const Unfinished::Lent lent;
        if (done % 8 == 0) std::this_thread::yield();
        if (done == kSize / 2) Unfinished::hand_over_all();
      }
      EXPECT_EQ(done + pile.given_away(), kSize);
      --working;
    });
  }
  while (working > 0) Unfinished::fetch_lent();
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace farspan::testing
