// The rules under test: c10d/device/shared_event.h. What devices do with such events is in
// tests/conformance/device_conformance_test.cc.
#include <farspan/c10d/device/shared_event.h>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include <farspan/c10d/base/error.h>

#include "c10d/device/name_text.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using device::DeathWatch;
using device::EventName;
using device::Reach;
using device::SharedEvent;
using std::chrono::seconds;

constexpr uint64_t kHere = 1, kThere = 2;
constexpr uint32_t kWords = 512;

// As a device sees it, which knows of no processes.
bool is_written(const SharedEvent& event, uint32_t record) {
  const auto* const word =
      reinterpret_cast<const std::atomic<uint32_t>*>(event.memory() + event.offset_of(record));
  return word->load() == record;
}

TEST(SharedEvent, IsSeenByWhoOpensIt) {
  SharedEvent own(kHere, Reach::kThisHost);
  SharedEvent opened(kThere, own.name());
  EXPECT_TRUE(opened.has_come(opened.last_record())) << "never recorded";
  const uint32_t record = own.record();
  EXPECT_EQ(opened.last_record(), record);
  EXPECT_FALSE(opened.has_come(record));
  own.come(record);
  EXPECT_TRUE(opened.has_come(record));
  EXPECT_TRUE(own.is_own() && !opened.is_own());
}

TEST(SharedEvent, RecordsComeInAnyOrder) {
  SharedEvent event(kHere, Reach::kThisHost);
  const uint32_t early = event.record(), late = event.record();
  event.come(late);
  EXPECT_TRUE(event.has_come(late));
  EXPECT_FALSE(event.has_come(early));
  event.come(early);
  EXPECT_TRUE(event.has_come(early));
}

TEST(SharedEvent, AWordIsUsedAgainAndDoesNotGoBack) {
  SharedEvent event(kHere, Reach::kThisHost);
  const uint32_t first = event.record();
  uint32_t last = first;
  while (last < first + kWords) last = event.record();
  EXPECT_EQ(event.offset_of(first), event.offset_of(last));
  EXPECT_FALSE(event.has_come(last));
  event.come(last);
  event.come(first);
  EXPECT_TRUE(event.has_come(first) && event.has_come(last));
}

// As many records later as no test waits for.
TEST(SharedEvent, NumbersGoRound) {
  SharedEvent event(kHere, Reach::kThisHost);
  auto* const recorded = reinterpret_cast<std::atomic<uint32_t>*>(event.memory());
  recorded->store(UINT32_MAX - 2 * kWords);
  for (uint32_t i = 0; i < 3 * kWords; ++i) event.come(event.record());
  EXPECT_LT(event.last_record(), kWords);
  EXPECT_TRUE(event.has_all_come());
  const uint32_t early = event.record(), late = event.record();
  EXPECT_FALSE(event.has_come(early) || event.has_come(late) || event.has_all_come());
  event.come(late);
  EXPECT_FALSE(event.has_come(early) || event.has_all_come());
  event.come(early);
  EXPECT_TRUE(event.has_all_come());
}

TEST(SharedEvent, IsNamedByItsMakerForOthersOnly) {
  const SharedEvent hidden(kHere, Reach::kThisProcess), own(kHere, Reach::kThisHost);
  const EventName name = own.name();
  const SharedEvent opened(kThere, name);
  EXPECT_EQ(error_of([&] { hidden.name(); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { opened.name(); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { SharedEvent(kHere, name); }).code(), Code::kInvalidArgument);
}

// Records what never comes, and is killed.
int record_and_stay() {
  SharedEvent event(kHere, Reach::kThisHost);
  for (int i = 0; i < 3; ++i) event.record();
  event.come(2);
  std::cout << text_of(event.name()) << std::endl;
  std::this_thread::sleep_for(seconds(60));
  return 1;
}

struct Maker {
  std::shared_ptr<SharedEvent> event() {
    const size_t digits = 2 * sizeof(EventName);
    EXPECT_TRUE(eventually([&] { return process.output().size() > digits; }, seconds(30)));
    return std::make_shared<SharedEvent>(kThere,
                                         name_of<EventName>(process.output().substr(0, digits)));
  }
  void kill() {
    process.signal(SIGKILL);
    process.wait(seconds(10));
  }
  Process process{"record_and_stay"};
};

TEST(DeathWatch, HasWhatADeadProcessRecordedComeAndNothingElse) {
  Maker maker, other;
  const auto event = maker.event(), of_other = other.event();
  DeathWatch watch;
  watch.add(of_other);
  watch.add(event);
  EXPECT_TRUE(is_written(*event, 2));
  EXPECT_FALSE(is_written(*event, 1) || is_written(*event, 3));
  maker.kill();
  EXPECT_TRUE(eventually([&] { return is_written(*event, 1) && is_written(*event, 3); }));
  EXPECT_FALSE(is_written(*of_other, 1) || is_written(*of_other, 3));
  EXPECT_FALSE(of_other->has_come(3));
  other.kill();
  EXPECT_TRUE(eventually([&] { return is_written(*of_other, 3); }));
}

TEST(DeathWatch, SeesToThoseOfAProcessThatIsDeadAlready) {
  Maker maker;
  const auto event = maker.event();
  maker.kill();
  EXPECT_TRUE(event->has_come(3));
  DeathWatch watch;
  watch.add(event);
  EXPECT_TRUE(eventually([&] { return is_written(*event, 3); }));
}

TEST(DeathWatch, LetsGoOfWhatIsRemoved) {
  Maker maker;
  std::weak_ptr<SharedEvent> gone;
  DeathWatch watch;
  {
    const auto event = maker.event();
    gone = event;
    watch.add(event);
    watch.remove(event);
  }
  EXPECT_TRUE(eventually([&] { return gone.expired(); }));
  maker.kill();
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv,
                                     {{"record_and_stay", farspan::testing::record_and_stay}});
}
