// The rules under test: c10d/device/exports.h and imports.h, between simulated devices of two.
#include <farspan/c10d/device/exports.h>
#include <farspan/c10d/device/imports.h>

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/device/simulated/simulated.h>

#include "c10d/device/held_stream.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using device::Export;
using device::Exports;
using device::ImportLimits;
using device::Imports;
using device::SimulatedDevices;
using device::Stream;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::IsEmpty;

constexpr uint64_t kPeer = 7;
constexpr size_t kBytes = 1000;

std::vector<std::byte> filled(size_t bytes, uint64_t seed) {
  std::vector<std::byte> made(bytes);
  std::mt19937_64 random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

// One process of the two.
struct Side {
  explicit Side(uint64_t seed)
      : devices(device::make_simulated_devices({.seed = seed})), stream(devices->new_stream(0)) {}
  ~Side() {
    EXPECT_THAT(devices->faults(), IsEmpty());
    devices->end_stream(stream);
  }

  std::byte* allocate(size_t bytes = kBytes) const {
    return static_cast<std::byte*>(devices->allocate(0, bytes));
  }
  void write(std::byte* to, const std::vector<std::byte>& bytes) const {
    devices->copy(stream, to, bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(const std::byte* from, size_t bytes = kBytes) const {
    std::vector<std::byte> got(bytes);
    devices->copy(stream, got.data(), from, bytes);
    finish();
    return got;
  }
  void finish() const { EXPECT_TRUE(devices->synchronize(stream, Deadline::after(seconds(20)))); }

  const std::unique_ptr<SimulatedDevices> devices;
  const Stream stream;
};

class ExportsTest : public ::testing::Test {
 protected:
  ExportsTest() : target_(there_.allocate()) {}
  ~ExportsTest() override {
    there_.finish();
    there_.devices->release(target_);
  }

  Export make(uint64_t id, const std::byte* memory, size_t bytes = kBytes,
              std::shared_ptr<void> owner = nullptr) {
    auto made = exports_.make(id, memory, bytes, here_.stream, std::move(owner));
    EXPECT_TRUE(made);
    return made.value_or(Export{});
  }
  // Copied there and taken.
  std::vector<std::byte> bring(Imports& imports, uint64_t id, const Export& from) {
    imports.copy(kPeer, from, target_, there_.stream);
    auto got = there_.read(target_);
    exports_.taken(id);
    here_.finish();  // for ThreadSanitizer, which does not see what comes by shared memory
    return got;
  }

  const Side here_{1}, there_{2};
  Exports exports_{*here_.devices};
  std::byte* const target_;
};

TEST_F(ExportsTest, BytesComeAsTheyWereWritten) {
  Imports imports(*there_.devices);
  std::byte* const source = here_.allocate();
  const auto sent = filled(kBytes, 1);
  here_.write(source, sent);  // which may come later than all that follows here
  const auto owner = std::make_shared<int>();
  const Export made = make(1, source, kBytes, owner);
  EXPECT_EQ(made.bytes, kBytes);
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ(bring(imports, 1, made), sent);
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(exports_.kept(), 0u);
  here_.devices->release(source);
}

TEST_F(ExportsTest, APartOfARegionComesAlone) {
  Imports imports(*there_.devices);
  std::byte* const source = here_.allocate(10 * kBytes);
  const auto sent = filled(10 * kBytes, 2);
  here_.write(source, sent);
  const Export made = make(1, source + 3 * kBytes + 5);
  EXPECT_EQ(made.offset, 3 * kBytes + 5);
  const auto got = bring(imports, 1, made);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin() + 3 * kBytes + 5));
  here_.devices->release(source);
}

TEST_F(ExportsTest, ARegionIsOpenedOnce) {
  Imports imports(*there_.devices);
  std::byte* const source = here_.allocate(10 * kBytes);
  for (uint64_t id = 1; id <= 10; ++id) bring(imports, id, make(id, source + (id - 1) * kBytes));
  EXPECT_EQ(imports.counters().opened, 1u);
  EXPECT_EQ(imports.counters().copies, 10u);
  EXPECT_EQ(imports.counters().bytes, 10 * kBytes);
  EXPECT_EQ(imports.counters().events, 1u);  // as all came one after the other
  here_.devices->release(source);
}

// A cache that looked at addresses would bring what was there before, or poison.
TEST_F(ExportsTest, WhatIsAllocatedAtTheSameAddressIsAnotherRegion) {
  Imports imports(*there_.devices);
  std::byte* before = nullptr;
  for (uint64_t id = 1; id <= 3; ++id) {
    std::byte* const source = here_.allocate();
    if (before) {
      EXPECT_EQ(source, before);
    }
    const auto sent = filled(kBytes, id);
    here_.write(source, sent);
    EXPECT_EQ(bring(imports, id, make(id, source)), sent);
    before = source;
    here_.devices->release(source);
  }
  EXPECT_EQ(imports.counters().opened, 3u);
}

TEST_F(ExportsTest, ClosesWhatNobodyHasUsedForLongest) {
  Imports imports(*there_.devices, {.regions = 2});
  std::byte* const sources[] = {here_.allocate(), here_.allocate(), here_.allocate()};
  uint64_t id = 0;
  const auto use = [&](int source) {
    ++id;
    bring(imports, id, make(id, sources[source]));
    return imports.counters().opened;
  };
  EXPECT_EQ(use(0), 1u);
  EXPECT_EQ(use(1), 2u);
  EXPECT_EQ(use(0), 2u);
  EXPECT_EQ(use(2), 3u);  // in place of 1
  EXPECT_EQ(use(0), 3u);
  EXPECT_EQ(use(1), 4u);  // in place of 2
  EXPECT_EQ(imports.counters().regions, 2u);
  EXPECT_EQ(there_.devices->opened(), 2u);
  for (std::byte* const source : sources) here_.devices->release(source);
}

// Holds up what `stream` is given from now on.
class Gate {
 public:
  explicit Gate(const Side& side) {
    side.devices->then(side.stream,
                       [open = is_open_] { eventually([&] { return open->load(); }); });
  }
  ~Gate() { open(); }
  void open() { *is_open_ = true; }

 private:
  const std::shared_ptr<std::atomic<bool>> is_open_ = std::make_shared<std::atomic<bool>>(false);
};

TEST_F(ExportsTest, WhatIsBeingCopiedStaysOpen) {
  Imports imports(*there_.devices, {.regions = 1, .events = 1, .idle = milliseconds(0)});
  std::byte* const sources[] = {here_.allocate(), here_.allocate(), here_.allocate()};
  std::vector<std::byte*> targets;
  const auto sent = filled(kBytes, 0);
  Gate gate(here_);
  for (uint64_t id = 1; id <= 3; ++id) {
    here_.write(sources[id - 1], sent);
    targets.push_back(there_.allocate());
    imports.copy(kPeer, make(id, sources[id - 1]), targets.back(), there_.stream);
  }
  imports.forget(kPeer);
  EXPECT_LT(imports.close_idle(Clock::now()), TimePoint::max());
  EXPECT_EQ(imports.counters().regions, 3u);
  EXPECT_EQ(imports.counters().events, 3u);
  gate.open();
  there_.finish();
  here_.finish();
  EXPECT_EQ(imports.close_idle(Clock::now()), TimePoint::max());
  EXPECT_EQ(imports.counters().regions, 0u);
  EXPECT_EQ(there_.devices->opened(), 0u);
  EXPECT_EQ(there_.devices->events(), 0u);
  for (std::byte* const source : sources) here_.devices->release(source);
  for (std::byte* const target : targets) there_.devices->release(target);
}

TEST_F(ExportsTest, ClosesWhatIsIdle) {
  Imports imports(*there_.devices, {.idle = seconds(5)});
  std::byte* const source = here_.allocate();
  EXPECT_EQ(imports.close_idle(Clock::now()), TimePoint::max());
  bring(imports, 1, make(1, source));
  const TimePoint now = Clock::now(), next = imports.close_idle(now);
  EXPECT_GT(next, now + seconds(3));
  EXPECT_LE(next, now + seconds(5));
  EXPECT_EQ(imports.counters().regions, 1u);
  EXPECT_EQ(imports.close_idle(next), TimePoint::max());
  EXPECT_EQ(imports.counters().regions, 0u);
  EXPECT_EQ(there_.devices->opened(), 0u);
  here_.devices->release(source);
}

TEST_F(ExportsTest, ForgetsOnePeerOnly) {
  Imports imports(*there_.devices);
  std::byte* const source = here_.allocate();
  const Export made = make(1, source);
  for (const uint64_t peer : {1, 2}) imports.copy(peer, made, target_, there_.stream);
  there_.finish();
  imports.forget(1);
  EXPECT_GT(imports.close_idle(Clock::now()), Clock::now());
  EXPECT_EQ(imports.counters().regions, 1u);
  imports.copy(2, made, target_, there_.stream);
  EXPECT_EQ(imports.counters().opened, 2u);
  there_.finish();
  exports_.taken(1);
  here_.devices->release(source);
}

TEST_F(ExportsTest, RefusesWhatNoExportIsLike) {
  Imports imports(*there_.devices);
  std::byte* const source = here_.allocate();
  const Export good = make(1, source);
  const auto code_of = [&](auto change) {
    Export bad = good;
    change(bad);
    try {
      imports.copy(kPeer, bad, target_, there_.stream);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(code_of([](Export& bad) { bad.bytes = 0; }), Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) { bad.offset = bad.region_bytes; }), Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) { bad.offset = ~uint64_t{0}; }), Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) { bad.bytes = ~uint64_t{0}; }), Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) { bad.region_bytes = bad.offset = 1 << 20; }), Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) {
              bad.region_bytes = 1 << 20;
              bad.offset = 1 << 19;
            }),
            Code::kCorrupt);
  EXPECT_EQ(code_of([](Export& bad) { bad.region = 99, bad.memory = {}; }), Code::kUnavailable);
  EXPECT_EQ(code_of([](Export& bad) { bad.event = 99, bad.written = {}; }), Code::kUnavailable);
  EXPECT_EQ(imports.counters().copies, 0u);
  EXPECT_EQ(code_of([](Export&) {}), Code::kOk);
  there_.finish();
  exports_.taken(1);
  here_.devices->release(source);
}

TEST_F(ExportsTest, AnEventIsRecordedAnewWhenItsExportIsTaken) {
  std::byte* const source = here_.allocate();
  const Export first = make(1, source), second = make(2, source), third = make(2, source);
  EXPECT_NE(first.event, second.event);
  EXPECT_NE(second.event, third.event);
  EXPECT_EQ(exports_.events(), 3u);
  exports_.taken(2);
  EXPECT_EQ(exports_.kept(), 1u);
  exports_.taken(2);
  exports_.taken(77);
  EXPECT_NE(make(3, source).event, first.event);
  EXPECT_EQ(exports_.events(), 3u);
  exports_.close();
  EXPECT_EQ(exports_.kept(), 0u);
  EXPECT_EQ(here_.devices->events(), 0u);
  here_.devices->release(source);
}

TEST_F(ExportsTest, IsReadForWhoCannotOpenItAndKeptMeanwhile) {
  std::byte* const source = here_.allocate();
  const auto sent = filled(kBytes, 1);
  here_.write(source, sent);  // late
  const auto owner = std::make_shared<int>();
  const Export made = make(1, source, kBytes, owner);
  const Stream stream = here_.devices->new_stream(0);
  auto memory = exports_.read(made, stream);
  ASSERT_EQ(memory.get(), source);
  exports_.taken(1);  // its line has ended, say
  EXPECT_EQ(exports_.kept(), 0u);
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_NE(make(2, source).event, made.event) << "it is in use";
  std::vector<std::byte> got(kBytes);
  here_.devices->copy(stream, got.data(), memory.get(), kBytes);
  EXPECT_TRUE(here_.devices->synchronize(stream, Deadline::after(seconds(20))));
  EXPECT_EQ(got, sent);
  memory = nullptr;
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_EQ(make(3, source).event, made.event);
  here_.devices->end_stream(stream);
  here_.finish();
  here_.devices->release(source);
}

TEST_F(ExportsTest, IsReadOnlyAsItWasMadeAndWhileItIsKept) {
  std::byte* const source = here_.allocate();
  const Export made = make(1, source);
  const auto is_found = [&](auto change) {
    Export other = made;
    change(other);
    return exports_.read(other, here_.stream) != nullptr;
  };
  EXPECT_TRUE(is_found([](Export&) {}));
  EXPECT_FALSE(is_found([](Export& other) { other.id += 1; }));
  EXPECT_FALSE(is_found([](Export& other) { other.bytes += 1; }));
  EXPECT_FALSE(is_found([](Export& other) { other.event += 1; }));
  EXPECT_FALSE(is_found([](Export& other) { other.written[0] ^= std::byte{1}; }));
  exports_.taken(1);
  EXPECT_FALSE(is_found([](Export&) {}));
  const Export next = make(4, source);
  EXPECT_EQ(next.event, made.event);
  EXPECT_FALSE(is_found([](Export&) {})) << "what has the same event now is another one";
  exports_.taken(4);
  exports_.make_local(2, here_.stream, nullptr);
  EXPECT_FALSE(is_found([](Export& other) { other.bytes = 0; })) << "that has the event now";
  const Stream elsewhere = here_.devices->new_stream(1);
  const Export again = make(3, source);
  EXPECT_EQ(exports_.read(again, elsewhere), nullptr) << "another device";
  here_.devices->end_stream(elsewhere);
  here_.finish();
  here_.devices->release(source);
}

TEST_F(ExportsTest, MemoryOfAnotherProcessIsNotExported) {
  std::byte* const source = here_.allocate();
  const auto name = here_.devices->name_memory(source);
  void* const opened = there_.devices->open_memory(0, name);
  Exports exports(*there_.devices, 0);
  EXPECT_FALSE(exports.make(1, opened, kBytes, there_.stream, nullptr));
  EXPECT_EQ(exports.events(), 0u);
  there_.devices->close_memory(opened);
  here_.devices->release(source);
}

constexpr size_t kBlock = size_t{1} << 20;  // the least that is staged

class StagedExportsTest : public ExportsTest {
 protected:
  ~StagedExportsTest() override { here_.devices->release(source_); }
  // Of memory that other processes cannot open.
  std::optional<Export> stage(Exports& exports, uint64_t id, size_t bytes = kBytes) {
    return exports.make(id, source_, bytes, here_.stream, nullptr);
  }
  std::byte* const source_ =
      static_cast<std::byte*>(here_.devices->allocate_unnamed(0, 3 * kBlock));
};

TEST_F(StagedExportsTest, WhatCannotBeOpenedIsCopiedToWhatCan) {
  Imports imports(*there_.devices);
  Exports exports(*here_.devices, 2 * kBlock);
  for (uint64_t id = 1; id <= 5; ++id) {
    const auto sent = filled(kBytes, id);
    here_.write(source_, sent);
    const auto made = stage(exports, id);
    ASSERT_TRUE(made);
    imports.copy(kPeer, *made, target_, there_.stream);
    EXPECT_EQ(there_.read(target_), sent);
    exports.taken(id);
    here_.finish();
  }
  EXPECT_EQ(exports.staged(), 5 * kBytes);
  EXPECT_EQ(imports.counters().opened, 1u) << "the same block was used again";
  here_.finish();
}

TEST_F(StagedExportsTest, ABlockIsInUseUntilItsExportIsTaken) {
  Exports exports(*here_.devices, 2 * kBlock);
  ASSERT_TRUE(stage(exports, 1));
  ASSERT_TRUE(stage(exports, 2));
  EXPECT_FALSE(stage(exports, 3)) << "no room";
  EXPECT_EQ(exports.kept(), 2u);
  exports.taken(1);
  EXPECT_TRUE(stage(exports, 3));
  EXPECT_FALSE(stage(exports, 4, 3 * kBlock)) << "more than there ever is room for";
  here_.finish();
}

TEST_F(StagedExportsTest, ABlockIsInUseAsLongAsItIsRead) {
  Exports exports(*here_.devices, kBlock);
  const auto made = stage(exports, 1);
  ASSERT_TRUE(made);
  auto memory = exports.read(*made, here_.stream);
  ASSERT_TRUE(memory);
  EXPECT_NE(memory.get(), source_);
  exports.taken(1);
  EXPECT_FALSE(stage(exports, 2));
  memory = nullptr;
  EXPECT_TRUE(stage(exports, 2));
  here_.finish();
}

TEST_F(StagedExportsTest, BlocksOfAnotherSizeMakeRoom) {
  Exports exports(*here_.devices, 2 * kBlock);
  const size_t before = here_.devices->allocated(0);
  ASSERT_TRUE(stage(exports, 1));
  ASSERT_TRUE(stage(exports, 2));
  EXPECT_EQ(here_.devices->allocated(0), before + 2 * kBlock);
  here_.finish();
  exports.taken(1);
  EXPECT_FALSE(stage(exports, 3, 2 * kBlock)) << "one is in use";
  exports.taken(2);
  EXPECT_TRUE(stage(exports, 3, 2 * kBlock));
  EXPECT_EQ(here_.devices->allocated(0), before + 2 * kBlock);
  here_.finish();
}

TEST_F(StagedExportsTest, ABlockThatIsBeingWrittenMakesNoRoom) {
  Exports exports(*here_.devices, 2 * kBlock);
  const size_t before = here_.devices->allocated(0);
  {
    const HeldStream held(*here_.devices, here_.stream);
    ASSERT_TRUE(stage(exports, 1));
    exports.taken(1);
    EXPECT_FALSE(stage(exports, 2, 2 * kBlock));
    EXPECT_NE(exports.release_idle(Clock::now() + Exports::kIdle), TimePoint::max());
    EXPECT_EQ(here_.devices->allocated(0), before + kBlock);
  }
  here_.finish();
  EXPECT_TRUE(stage(exports, 2, 2 * kBlock));
  EXPECT_EQ(here_.devices->allocated(0), before + 2 * kBlock);
  EXPECT_EQ(exports.events(), 1u) << "that of the block that has gone is left";
  here_.finish();
}

TEST_F(StagedExportsTest, WhatIsIdleGoes) {
  Exports exports(*here_.devices, 2 * kBlock);
  EXPECT_EQ(exports.release_idle(Clock::now()), TimePoint::max());
  const size_t before = here_.devices->allocated(0);
  std::byte* const source = here_.allocate();
  ASSERT_TRUE(stage(exports, 1));
  ASSERT_TRUE(exports.make(2, source, kBytes, here_.stream, nullptr));
  here_.finish();
  const auto idle = [&] { return exports.release_idle(Clock::now() + Exports::kIdle); };
  EXPECT_NE(idle(), TimePoint::max()) << "they are not taken";
  exports.taken(1);
  exports.taken(2);
  EXPECT_NE(exports.release_idle(Clock::now()), TimePoint::max()) << "the next ones need them";
  EXPECT_EQ(exports.events(), 2u);
  EXPECT_EQ(idle(), TimePoint::max());
  EXPECT_EQ(exports.events(), 0u);
  here_.devices->release(source);
  EXPECT_EQ(here_.devices->allocated(0), before);
}

TEST_F(StagedExportsTest, ADeviceThatIsFullStagesNothing) {
  const auto small = device::make_simulated_devices({.memory = kBlock + 4096});
  const Stream stream = small->new_stream(0);
  void* const source = small->allocate_unnamed(0, kBytes);
  void* const rest = small->allocate(0, kBlock / 2);
  {
    Exports exports(*small);
    EXPECT_FALSE(exports.make(1, source, kBytes, stream, nullptr));
    small->release(rest);
    EXPECT_TRUE(exports.make(1, source, kBytes, stream, nullptr));
    EXPECT_TRUE(small->synchronize(stream, Deadline::after(seconds(20))));
  }
  small->release(source);
  EXPECT_EQ(small->allocated(0), 0u) << "what was staged was not released";
  small->end_stream(stream);
}

// The whole way, many times: the source is written anew, or released and allocated anew, as soon as
// it is taken, while streams are late.
class ExportsOrder : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ExportsOrder, EveryByteIsRight) {
  const Side here(GetParam()), there(GetParam() + 1000);
  Exports exports(*here.devices);
  Imports imports(*there.devices, {.regions = 3, .events = 3, .idle = milliseconds(1)});
  std::mt19937_64 random(GetParam());
  constexpr size_t kMost = 5000, kSources = 4;
  struct Source {
    std::byte* memory;
    std::shared_ptr<std::atomic<bool>> taken = std::make_shared<std::atomic<bool>>(true);
  };
  std::vector<Source> sources(kSources);
  for (Source& source : sources) source.memory = here.allocate(kMost);
  std::byte* const target = there.allocate(kMost);
  std::vector<std::vector<std::byte>> sent;  // which the streams read
  std::vector<std::unique_ptr<std::vector<std::byte>>> got;
  constexpr uint64_t kRounds = 250;
  for (uint64_t id = 1; id <= kRounds; ++id) {
    Source& source = sources[random() % kSources];
    ASSERT_TRUE(eventually([&] { return source.taken->load(); }));
    if (random() % 4 == 0) {
      here.finish();
      here.devices->release(source.memory);
      source.memory = here.allocate(kMost);
    }
    const size_t offset = random() % kMost, bytes = 1 + random() % (kMost - offset);
    sent.push_back(filled(bytes, random()));
    here.devices->copy(here.stream, source.memory + offset, sent.back().data(), bytes);
    source.taken->store(false);
    const auto made = exports.make(id, source.memory + offset, bytes, here.stream, nullptr);
    ASSERT_TRUE(made);
    imports.copy(kPeer, *made, target, there.stream);
    got.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    there.devices->then(there.stream, [&exports, id, taken = source.taken] {
      exports.taken(id);
      taken->store(true);
    });
    there.devices->copy(there.stream, got.back()->data(), target, bytes);
    if (random() % 8 == 0) imports.close_idle(Clock::now());
  }
  there.finish();
  here.finish();
  for (uint64_t i = 0; i < kRounds; ++i) ASSERT_EQ(*got[i], sent[i]) << "round " << i;
  EXPECT_LE(exports.events(), kSources);
  for (const Source& source : sources) here.devices->release(source.memory);
  there.devices->release(target);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExportsOrder, ::testing::Range(uint64_t{1}, uint64_t{11}));

}  // namespace
}  // namespace farspan::testing
