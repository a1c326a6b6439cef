// How messages between simulated devices end when something goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/late.h>

#include "c10d/backends/nccl_messages.h"
#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::dist::nccl {
namespace {

using farspan::testing::error_of;
using farspan::testing::eventually;
using ::testing::HasSubstr;

using NcclMessageEnds = NcclMessages;

TEST_F(NcclMessageEnds, WhoLeavesBeforeAReceiveIsThereIsNamed) {
  on_each([](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1});
    if (rank.number == 0) {
      const Called waits = irecv(rank, data.block(), 1);
      send(rank, data, 1, {.tag = 1});
      const Error error = waits.error();
      EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(name(rank, 1) + " has left the group"));
    } else {
      recv(rank, data, 0, {.tag = 1});
      data.read();
      rank.backend->finish(Deadline::after(10s));
      rank.backend->leave();
    }
  });
}

// Nothing that both ranks have begun is cut off by the end of one.
TEST_F(NcclMessageEnds, WhoLeavesInOrderWaitsForHisDevice) {
  Held held;
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({rank.number});
    if (rank.number == 1) rank.hold(held.until());
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    one.follow(rank.stream);
    if (rank.number == 0) {
      held.go();
      rank.backend->finish(Deadline::after(10s));
      rank.backend->leave();
    }
    EXPECT_EQ(one.on_device->ended.wait(), 1 - rank.number);
    EXPECT_EQ(data.read(), Numbers{0});
  });
}

TEST_F(NcclMessageEnds, ADeviceThatHangsEndsTheMessageAndTheGroup) {
  Held held;
  std::latch all_told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1}), sum = rank.array({1});
    if (rank.number == 1) rank.hold(held.until());
    const TimePoint begun = Clock::now();
    const Millis timeout = rank.number == 0 ? 300ms : 20s;
    const Called one = rank.number == 0 ? isend(rank, data.block(), 1, {.timeout = timeout})
                                        : irecv(rank, data.block(), 0, {.timeout = timeout});
    one.follow(rank.stream);
    const Error error = one.error();
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(name(rank, 0) + " gave up after"));
    EXPECT_THAT(error.what(), HasSubstr(name(rank, 1) + " receives it, and the device had not"));
    EXPECT_THAT(error.operation(),
                HasSubstr(" of 1 element of int64 on a device, tag 0, message 1 "));
    EXPECT_LT(Clock::now() - begun, 5s);
    const Error next = isend(rank, data.block(), 1 - rank.number).error();
    EXPECT_EQ(next.code(), Code::kTimeout) << next.what();
    EXPECT_EQ(error_of([&] { rank.all_reduce(sum).wait(); }).code(), Code::kTimeout);
    all_told.arrive_and_wait();
    held.go();
    data.read();
  });
}

TEST_F(NcclMessageEnds, ARankThatLeavesWhileItsDeviceIsAtWorkEndsWhatWaitsForIt) {
  Held held;
  std::latch told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1});
    if (rank.number == 0) rank.hold(held.until());
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    one.follow(rank.stream);
    const TimePoint begun = Clock::now();
    if (rank.number == 0) rank.backend->leave();
    const Error error = one.error();
    EXPECT_EQ(error.code(), rank.number == 0 ? Code::kShutdown : Code::kDisconnected)
        << error.what();
    if (rank.number == 1) {
      EXPECT_THAT(error.what(), HasSubstr(name(rank, 0) + " has left the group while"));
    }
    EXPECT_LT(Clock::now() - begun, 5s);
    told.arrive_and_wait();
    held.go();
    data.read();
  });
}

TEST_F(NcclMessageEnds, WhatNcclReportsEndsTheMessage) {
  Held held;
  std::latch given(2), told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1});
    if (rank.number == 0) rank.hold(held.until());
    Message message_of_device = message(rank, 1 - rank.number, {});
    auto memory = std::make_shared<int>();
    const std::weak_ptr<int> kept = memory;
    message_of_device.on_device->memory = std::move(memory);
    const Called one{message_of_device.on_device,
                     rank.number == 0 ? rank.backend->send(message_of_device, data.block())
                                      : rank.backend->recv(message_of_device, data.block())};
    one.follow(rank.stream);
    given.arrive_and_wait();
    if (rank.number == 0) library->fail_all("a network card is broken");
    const Error error = one.error();
    EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("a network card is broken"));
    told.arrive_and_wait();
    if (rank.number == 0) {
      EXPECT_FALSE(kept.expired());  // the stream has not come to it
      held.go();
    }
    data.read();
    EXPECT_TRUE(eventually([&] { return kept.expired(); }));
  });
}

TEST_F(NcclMessageEnds, AbortEndsThemOnAllRanks) {
  Held held;
  std::latch given(2), told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1}), copied = rank.array({1});
    if (rank.number == 0) rank.hold(held.until());
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    const Called unmatched = irecv(rank, data.block(), 2);
    one.follow(rank.stream);
    const Called to_itself = isend(rank, data.block(), rank.number, {.tag = 1});
    const Called own = irecv(rank, copied.block(), rank.number, {.tag = 1});
    own.follow(rank.stream);
    given.arrive_and_wait();
    if (rank.number == 0) rank.backend->abort(Error(Code::kCancelled, "enough"), 0);
    std::vector<const Called*> all{&one, &unmatched};
    if (rank.number == 0) all.insert(all.end(), {&to_itself, &own});
    for (const Called* each : all) {
      const Error error = each->error();
      EXPECT_EQ(error.code(), Code::kCancelled) << error.what();
    }
    told.arrive_and_wait();
    held.go();
    data.read();
  });
}

// A backend of which a test says when another rank is gone, and which of Direction's own messages
// get lost: as if this rank's process had been stopped there.
class Watched final : public Backend {
 public:
  static constexpr int kEndTag = -4, kMeetTag = -5, kPlaceTag = -6;
  explicit Watched(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::atomic<int> lost_tag{kEndTag};  // which is never sent
  std::atomic<Millis> to_find_late{0ms};
  void lose(const Error& why) {
    MutexLock lock(mutex_);
    for (const Promise<int>& one : watches_) one.set_error(why);
  }

  std::string_view name() const noexcept override { return inner_->name(); }
  std::string name_of(int rank) const override { return inner_->name_of(rank); }
  void broadcast(const Call& call, Block data) override { inner_->broadcast(call, data); }
  void all_reduce(const Call& call, Block data) override { inner_->all_reduce(call, data); }
  void reduce(const Call& call, Block data) override { inner_->reduce(call, data); }
  void all_gather(const Call& call, Block in, std::span<const Block> out) override {
    inner_->all_gather(call, in, out);
  }
  void gather(const Call& call, Block in, std::span<const Block> out) override {
    inner_->gather(call, in, out);
  }
  void scatter(const Call& call, std::span<const Block> in, Block out) override {
    inner_->scatter(call, in, out);
  }
  void reduce_scatter(const Call& call, std::span<const Block> in, Block out) override {
    inner_->reduce_scatter(call, in, out);
  }
  void all_to_all(const Call& call, std::span<const Block> in,
                  std::span<const Block> out) override {
    inner_->all_to_all(call, in, out);
  }
  void barrier(const Call& call) override {
    try {
      inner_->barrier(call);
    } catch (...) {
      std::this_thread::sleep_for(to_find_late.load());  // as if the one asked did not answer
      throw;
    }
  }
  Future<int> send(const Message& message, Block data) override {
    if (message.tag == lost_tag) return make_ready_future(int{message.peer});
    return inner_->send(message, data);
  }
  Future<int> recv(const Message& message, Block data) override {
    const Future<int> received = inner_->recv(message, data);
    if (message.tag != kEndTag) return received;
    const Promise<int> watch;
    received.on_ready([watch, received] { watch.take(received); });
    MutexLock lock(mutex_);
    watches_.push_back(watch);
    return watch.future();
  }
  void abort(const Error& why, uint64_t since) noexcept override { inner_->abort(why, since); }
  void leave() noexcept override { inner_->leave(); }
  std::shared_ptr<Backend> subgroup(GroupSpec spec) override {
    return inner_->subgroup(std::move(spec));
  }

 private:
  const std::shared_ptr<Backend> inner_;
  Mutex mutex_;
  std::vector<Promise<int>> watches_ FARSPAN_GUARDED_BY(mutex_);
};

struct WithWatched {
  std::shared_ptr<Watched> watched;  // rank 0's
};
class NcclRankIsGone : public WithWatched, public NcclMessages {
 protected:
  NcclRankIsGone()
      : NcclMessages(
            dist::testing::one_host,
            [this](int rank, std::shared_ptr<Backend> control) -> std::shared_ptr<Backend> {
              if (rank != 0) return control;
              return watched = std::make_shared<Watched>(std::move(control));
            }) {}
};

TEST_F(NcclRankIsGone, WhoHasNotCalledIsNamedAlsoWhenThatTakesLongToFind) {
  warm_up();
  watched->to_find_late = kToFindLate + 100ms;
  std::latch told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return told.wait();
    rank.timeout = 300ms;
    const Array data = rank.array({1});
    const Future<int> ended = rank.all_reduce(data);
    const Error error = error_of([&] { ended.wait(); });
    told.count_down();
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(name(rank, 2) + " had not called it"));
    data.read();
  });
}

TEST_F(NcclRankIsGone, WhatWaitsForItsDeviceEndsInError) {
  Held held;
  std::latch given(2), told(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1}), sum = rank.array({1});
    if (rank.number == 1) rank.hold(held.until());  // and dies
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    one.follow(rank.stream);
    given.arrive_and_wait();
    const TimePoint begun = Clock::now();
    if (rank.number == 0) watched->lose(gone_error(name(rank, 1)));
    const Error error = one.error();
    EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(name(rank, 1) + " is gone"));
    if (rank.number == 0) {
      EXPECT_GT(Clock::now() - begun, 500ms);  // it might have ended well
      EXPECT_THAT(error.operation(), HasSubstr("send of 1 element of int64 on a device, tag 0"));
      EXPECT_EQ(error_of([&] { rank.all_reduce(sum).wait(); }).code(), Code::kDisconnected);
    }
    told.arrive_and_wait();
    held.go();
    data.read();
  });
}

TEST_F(NcclRankIsGone, WhatIsDoneByThenEndsWellAndTheGroupGoesOn) {
  Held held;
  std::latch given(2), lost(2);
  on_each([&](Rank& rank) {
    const Array data = rank.array({rank.number});
    if (rank.number != 2) {
      if (rank.number == 1) rank.hold(held.until());
      const Called one =
          rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
      one.follow(rank.stream);
      given.arrive_and_wait();
      if (rank.number == 0) watched->lose(gone_error(name(rank, 1)));
      lost.arrive_and_wait();
      held.go();
      EXPECT_EQ(one.on_device->ended.wait(), 1 - rank.number);
      EXPECT_EQ(data.read(), Numbers{0});
    }
    rank.all_reduce(data).wait();
    data.read();
  });
}

TEST_F(NcclRankIsGone, WhoHasLeftHasDoneItsPart) {
  Held held;
  std::latch given(2), left(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({rank.number});
    if (rank.number == 1) rank.hold(held.until());
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    one.follow(rank.stream);
    given.arrive_and_wait();
    if (rank.number == 0) {
      watched->lose(left_error(name(rank, 1)));
      std::this_thread::sleep_for(1500ms);  // more than the grace for ranks that are gone
      EXPECT_FALSE(one.on_device->ended.ready());
    }
    left.arrive_and_wait();
    held.go();
    EXPECT_EQ(one.on_device->ended.wait(), 1 - rank.number);
    EXPECT_EQ(data.read(), Numbers{0});
  });
}

void expect_timeout(const Error& error, const std::string& why) {
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(why));
}

TEST_F(NcclRankIsGone, TwoThatDoNotConnectAreToldAtTheDeadline) {
  watched->lost_tag = Watched::kMeetTag;
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1}), more = rank.array({1});
    const TimePoint begun = Clock::now();
    const bool sends = rank.number == 0;
    const MessageOptions brief{.timeout = sends ? 300ms : 20s};
    const Called first = sends ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    // Its time is over while the one before it is not there.
    const Called one = sends ? isend(rank, more.block(), 1, brief) : irecv(rank, more.block(), 0);
    expect_timeout(one.error(), name(rank, 1) + " receives it, and they had not connected");
    expect_timeout(first.error(), "they had not connected");
    EXPECT_LT(Clock::now() - begun, 5s);
  });
}

TEST_F(NcclRankIsGone, ASenderThatDoesNotGoOnIsToldAtTheDeadline) {
  watched->lost_tag = Watched::kPlaceTag;
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1});
    const TimePoint begun = Clock::now();
    const Called one = rank.number == 0 ? isend(rank, data.block(), 1)
                                        : irecv(rank, data.block(), 0, {.timeout = 300ms});
    expect_timeout(one.error(), name(rank, 0) + " sends it, and did not go on");
    EXPECT_LT(Clock::now() - begun, 5s);
  });
}

TEST_F(NcclRankIsGone, WhoLeavesBeforeItsDeviceIsGivenTheMessageEndsTheOthersHalf) {
  watched->lost_tag = Watched::kMeetTag;
  std::latch matched(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1});
    const TimePoint begun = Clock::now();
    const Called one =
        rank.number == 0 ? isend(rank, data.block(), 1) : irecv(rank, data.block(), 0);
    EXPECT_FALSE(one.given.wait_for(100ms));  // they do not connect
    matched.arrive_and_wait();
    if (rank.number == 0) rank.backend->leave();
    const Error error = one.error();
    EXPECT_EQ(error.code(), rank.number == 0 ? Code::kShutdown : Code::kDisconnected)
        << error.what();
    EXPECT_LT(Clock::now() - begun, 5s);
  });
}

}  // namespace
}  // namespace farspan::dist::nccl
