// The rules under test: c10d/base/unfinished.h.
#include <farspan/c10d/base/unfinished.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace farspan::testing {
namespace {

// Remembers when somebody is to look.
struct Place final : Lending {
  void look_at(TimePoint at) noexcept override { look = at; }
  std::atomic<TimePoint> look{TimePoint::max()};
};

// Counts down in its thread what others leave of it.
class Pile final : Unfinished {
 public:
  Pile(Lending& lending, int size, bool is_urgent = true)
      : Unfinished(lending), left_(size), urgent_(is_urgent) {}
  bool take() { return left_ > 0 && left_-- > 0; }
  int given_away() const { return given_away_; }

 private:
  void hand_over() noexcept override { given_away_ += std::exchange(left_, 0); }
  bool urgent() const noexcept override { return urgent_; }
  bool has_more() const noexcept override { return left_ > 0; }
  int left_;
  const bool urgent_;
  int given_away_ = 0;
};

// In another thread, when what was lent last is old enough.
TimePoint fetch_later(Lending& lending, bool idle = true) {
  std::this_thread::sleep_for(2 * Lending::kFetchAfter);
  TimePoint next;
  std::thread([&] { next = lending.fetch(idle); }).join();
  return next;
}

TEST(Unfinished, IsGivenAwayByItsThreadOnly) {
  Place place, other_place;
  Pile outer(place, 3), inner(other_place, 2);
  EXPECT_EQ(fetch_later(place), TimePoint::max());
  std::thread([] { Unfinished::hand_over_all(); }).join();
  EXPECT_EQ(outer.given_away() + inner.given_away(), 0);
  Unfinished::hand_over_all();
  EXPECT_EQ(outer.given_away(), 3);
  EXPECT_EQ(inner.given_away(), 2);
  Unfinished::hand_over_all();
  EXPECT_EQ(outer.given_away(), 3);
}

TEST(Unfinished, IsFetchedByOthersWhileItIsLent) {
  Place place;
  Pile outer(place, 3);
  {
    const Unfinished::Lent lent;
    EXPECT_LE(place.look.load(), Clock::now() + Lending::kFetchAfter);
    const Pile later(place, 1);  // taken inside of what takes long
    EXPECT_EQ(fetch_later(place), TimePoint::max());
    EXPECT_EQ(outer.given_away(), 3);
    EXPECT_EQ(later.given_away(), 0);
  }
  const Pile inner(place, 2);
  fetch_later(place);
  EXPECT_EQ(inner.given_away(), 0);
}

TEST(Unfinished, IsFetchedFromItsOwnPlaceOnly) {
  Place place, other_place;
  const Pile outer(place, 3), inner(other_place, 2);
  const Unfinished::Lent lent;
  fetch_later(place);
  EXPECT_EQ(outer.given_away(), 3);
  EXPECT_EQ(inner.given_away(), 0);
}

TEST(Unfinished, IsLeftToItsThreadForAWhile) {
  Place place;
  const Pile pile(place, 1);
  for (;;) {
    const TimePoint begun = Clock::now();
    const Unfinished::Lent lent;
    const TimePoint next = place.fetch(true);
    if (Clock::now() - begun >= Lending::kFetchAfter) continue;  // the machine was slow
    EXPECT_EQ(pile.given_away(), 0);
    EXPECT_GE(next, begun + Lending::kFetchAfter);
    break;
  }
}

TEST(Unfinished, ThatIsNotUrgentIsLeftToIdleThreads) {
  Place place;
  const Pile pile(place, 1, false);
  const Unfinished::Lent lent;
  const TimePoint next = fetch_later(place, false);
  EXPECT_EQ(pile.given_away(), 0);
  EXPECT_GT(next, Clock::now() - std::chrono::seconds(10));
  EXPECT_LT(next, TimePoint::max());
  fetch_later(place, true);
  EXPECT_EQ(pile.given_away(), 1);
}

TEST(Unfinished, IsLentOnce) {
  Place place;
  const Pile outer(place, 1);
  const Unfinished::Lent lent;
  place.look = TimePoint::max();
  { const Unfinished::Lent again; }
  EXPECT_EQ(place.look.load(), TimePoint::max()) << "nothing more has been taken";
  {
    const Pile inner(place, 2);
    const Unfinished::Lent another;
    EXPECT_LT(place.look.load(), TimePoint::max());
    fetch_later(place);
    EXPECT_EQ(inner.given_away(), 2);
  }
  place.look = TimePoint::max();
  { const Unfinished::Lent again; }
  EXPECT_EQ(place.look.load(), TimePoint::max());
}

TEST(Unfinished, IsNotLentWithoutNeedWhereThereIsNoMore) {
  Place place;
  Pile outer(place, 1);
  {
    const Pile inner(place, 0);
    const Unfinished::Lent lent(/*needed=*/false);
    EXPECT_LT(place.look.load(), TimePoint::max()) << "the outer one has more";
  }
  EXPECT_TRUE(outer.take());
  place.look = TimePoint::max();
  {
    const Unfinished::Lent nothing(/*needed=*/false);
    EXPECT_EQ(place.look.load(), TimePoint::max());
    const Unfinished::Lent lent;
    EXPECT_LT(place.look.load(), TimePoint::max());
  }
  EXPECT_EQ(fetch_later(place), TimePoint::max());
}

// Every piece is either done by its thread or given away, whenever others come.
TEST(Unfinished, IsNeitherLostNorDoneTwice) {
  constexpr int kSize = 20'000;
  Place place;
  std::atomic<int> working{3};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      Pile pile(place, kSize);
      int done = 0;
      while (pile.take()) {
        ++done;
        const Unfinished::Lent lent;
        if (done % 1'000 == 0) std::this_thread::sleep_for(Lending::kFetchAfter);
        if (done == kSize / 2) Unfinished::hand_over_all();
      }
      EXPECT_EQ(done + pile.given_away(), kSize);
      --working;
    });
  }
  while (working > 0) place.fetch(true);
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace farspan::testing
