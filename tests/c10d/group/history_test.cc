#include <farspan/c10d/group/history.h>

#include <gtest/gtest.h>

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using State = OperationRecord::State;

const TimePoint kStart = TimePoint(1h);

OperationRecord barrier() {
  OperationRecord record;
  record.signature.op = Op::kBarrier;
  record.called = kStart;
  return record;
}

TEST(History, SaysHowAnOperationGoes) {
  History history;
  const uint64_t id = history.add(barrier());
  const auto text = [&] { return describe(history.records().front(), kStart + 5s); };
  EXPECT_EQ(text(), "barrier, queued for 5.00 s");
  history.begin(id, 7, kStart + 1s);
  EXPECT_EQ(text(), "call 7: barrier, running for 4.00 s");
  history.end(id, false, kStart + 3s);
  EXPECT_EQ(text(), "call 7: barrier, began 4.00 s ago, ended 2.00 s ago, took 2.00 s");
  history.end(id, true, kStart + 3s);
  EXPECT_EQ(text(), "call 7: barrier, called 5.00 s ago, failed 2.00 s ago, after 3.00 s");
}

// One that was never begun: its group failed, or ended, while it was queued.
TEST(History, SaysWhenAnOperationFailedThatNeverBegan) {
  History history;
  history.end(history.add(barrier()), true, kStart + 500ms);
  EXPECT_EQ(describe(history.records().front(), kStart + 61s),
            "barrier, called 61.00 s ago, failed 60.50 s ago, after 500.0 ms");
}

TEST(History, MessagesNameTheOtherRank) {
  OperationRecord record = barrier();
  record.signature.op = Op::kSend;
  record.signature.type = static_cast<uint8_t>(DType::FLOAT32);
  record.peer = 3;
  record.tag = 9;
  record.signature.sequence = 4;
  EXPECT_EQ(describe(record, kStart + 1s),
            "message 4: send of float32 [] to rank 3, tag 9, queued for 1.00 s");
}

TEST(History, KeepsTheLastOnesInOrder) {
  History history;
  for (size_t i = 0; i < History::kKept + 10; ++i) history.add(barrier());
  const auto records = history.records();
  ASSERT_EQ(records.size(), History::kKept);
  EXPECT_EQ(records.front().id, 11u);
  EXPECT_EQ(records.back().id, History::kKept + 10);
  history.end(3, false, kStart);  // forgotten long ago
}

}  // namespace
}  // namespace farspan::dist
