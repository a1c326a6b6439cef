// The rules under test: rpc/wire/WIRE.md, "Offers", on a line whose other end the tests hold by
// hand.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include <farspan/c10d/net/process_memory.h>

#include "rpc/agent/connection_suite.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kLimit = kConnectionLimit;

// A peer that reads offers, and makes some. Both sides are one process, so that memory can be
// looked at.
class OfferTest : public ConnectionTest {
 protected:
  explicit OfferTest(wire::InstanceId probed = {1, 2})
      : ConnectionTest({.max_in_flight_bytes = kLimit}, wire::kReadsOffers, probed) {
    agent_.handle(wire::Kind::kOptimizer, Messenger::Run::kInline, [this](Request request) {
      bytes_.set_value(bytes_of(request.frame().segments.at(1)));
    });
    // Before, everything travels: the welcome leaves a moment earlier.
    EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  }

  // A call with a large argument, as the stranger hears it.
  void call_with(const Buffer& large, Deadline deadline = Deadline::after(seconds(60))) {
    handler_ = std::make_shared<Answer>();
    answer_ = handler_->future();
    wire::OutFrame frame;
    frame.segments = {Buffer::copy_of(pattern(10)), large};
    agent_.call(1, frame, deadline, handler_, false);
    heard_ = stranger_->hear().value();
  }
  // As a peer reads it.
  uint64_t mark() const {
    uint64_t mark = 0;
    EXPECT_EQ(net::read_process_memory(getpid(), heard_.offer.mark_address, &mark, sizeof mark), 0);
    return mark;
  }
  // A one-way request that offers its second segment, under a mark that stands or not.
  RawFrame offering(const Bytes& large, bool stands = true) {
    return {.kind = 0x50,
            .flags = 4 | 8,
            .segments = {pattern(3), large},
            .addresses = {0, reinterpret_cast<uintptr_t>(large.data())},
            .offer = {7, reinterpret_cast<uintptr_t>(&mark_), stands ? mark_ : mark_ + 1}};
  }
  RawFrame about_offer(uint8_t kind, uint64_t id, std::vector<Bytes> segments = {}) {
    return {.kind = kind, .flags = 4, .request_id = id, .segments = std::move(segments)};
  }
  static constexpr uint8_t kTaken = 7, kAsk = 8, kBytes = 9;

  const Bytes large_ = pattern(300'000, 5);
  const uint64_t mark_ = 0x1234567;
  std::shared_ptr<Answer> handler_;
  Future<wire::InFrame> answer_;
  wire::InFrame heard_;
  Promise<Bytes> bytes_;  // that a request brought
};

TEST_F(OfferTest, ALargeArgumentIsKeptUntilItIsTaken) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large);
  ASSERT_NE(heard_.offer.id, 0u);
  EXPECT_EQ(heard_.offered, (std::vector<uint64_t>{0, reinterpret_cast<uintptr_t>(large.data())}));
  EXPECT_EQ(mark(), heard_.offer.mark);
  EXPECT_TRUE(same(heard_.segments[0].span(), pattern(10)));
  EXPECT_GT(large.owner().use_count(), 1);
  stranger_->say(about_offer(kTaken, heard_.offer.id));
  EXPECT_TRUE(eventually([&] { return large.owner().use_count() == 1; }));
  stranger_->say(answer_to(heard_.header.request_id));
  EXPECT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_FALSE(answer_.has_error());
}

TEST_F(OfferTest, WhoCannotReadIsSentTheBytesAndOfferedNoMore) {
  call_with(Buffer::copy_of(large_));
  const uint64_t request = heard_.header.request_id;
  RawFrame ask = about_offer(kAsk, heard_.offer.id);
  put(ask.meta, uint64_t{EPERM});
  stranger_->say(ask);
  const wire::InFrame bytes = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(bytes.header.kind), kBytes);
  EXPECT_EQ(bytes.header.request_id, heard_.offer.id);
  ASSERT_EQ(bytes.segments.size(), 1u);
  EXPECT_TRUE(same(bytes.segments[0].span(), large_));
  stranger_->say(answer_to(request));
  ASSERT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_FALSE(answer_.has_error());

  call_with(Buffer::copy_of(large_));
  EXPECT_EQ(heard_.offer.id, 0u);
  EXPECT_TRUE(same(heard_.segments.at(1).span(), large_));
}

TEST_F(OfferTest, ACallThatIsOverWithdrawsWhatItOffered) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large, Deadline::after(milliseconds(20)));
  ASSERT_NE(heard_.offer.id, 0u);
  ASSERT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_EQ(answer_.error().code(), Code::kTimeout);
  EXPECT_EQ(large.owner().use_count(), 1) << "before its caller hears of the end";
  RawFrame ask = about_offer(kAsk, heard_.offer.id);
  put(ask.meta, uint64_t{EFAULT});
  stranger_->say(ask);
  const wire::InFrame bytes = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(bytes.header.kind), kBytes);
  EXPECT_TRUE(bytes.segments.empty());
  call_with(large);
  EXPECT_NE(heard_.offer.id, 0u) << "to come too late is no reason not to be offered more";
}

TEST_F(OfferTest, ACallThatIsCancelledWithdrawsWhatItOffered) {
  const Buffer large = Buffer::copy_of(large_);
  for (const Deadline deadline : {Deadline::after(seconds(60)), Deadline::never()}) {
    call_with(large, deadline);
    ASSERT_NE(heard_.offer.id, 0u);
    EXPECT_TRUE(agent_.cancel(1, *handler_));
    ASSERT_TRUE(answer_.ready());
    EXPECT_EQ(answer_.error().code(), Code::kCancelled);
    EXPECT_EQ(large.owner().use_count(), 1);
    EXPECT_EQ(agent_.counters().in_flight, 0);
    EXPECT_FALSE(agent_.cancel(1, *handler_)) << "it has ended";
  }
  // Expect: an answer that comes all the same is nobody's, and the line goes on.
  stranger_->say(answer_to(heard_.header.request_id));
  call_with(large);
  EXPECT_FALSE(agent_.cancel(0, *handler_)) << "no call to that worker";
  stranger_->say(answer_to(heard_.header.request_id));
  ASSERT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_FALSE(answer_.has_error());
  EXPECT_FALSE(agent_.cancel(1, *handler_)) << "it was answered";
}

TEST_F(OfferTest, TheEndOfTheLineWithdrawsEverything) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large);
  stranger_.reset();
  EXPECT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_EQ(large.owner().use_count(), 1);
}

TEST_F(OfferTest, WhatIsOfferedIsRead) {
  stranger_->say(offering(large_));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
  const wire::InFrame taken = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(taken.header.kind), kTaken);
  EXPECT_EQ(taken.header.request_id, 7u);
}

TEST_F(OfferTest, WhatWasNotWhatWasOfferedIsAskedFor) {
  stranger_->say(offering(large_, false));
  const wire::InFrame ask = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(ask.header.kind), kAsk);
  EXPECT_EQ(ask.header.request_id, 7u);
  uint64_t error = 0;
  ASSERT_EQ(ask.meta.size(), sizeof error);
  std::memcpy(&error, ask.meta.data(), sizeof error);
  EXPECT_EQ(error, uint64_t{ESTALE});
  EXPECT_FALSE(bytes_.future().ready());
  const Bytes now = pattern(large_.size(), 9);
  stranger_->say(about_offer(kBytes, 7, {now}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), now);
  stranger_->say(about_offer(kBytes, 7, {now}));  // again: nothing
  stranger_->say(one_way());
  EXPECT_TRUE(eventually([&] { return arrived_ == 1; }));
}

TEST_F(OfferTest, ARequestThatWasWithdrawnIsDroppedAndCounts) {
  const uint64_t before = agent_.counters().requests_received;
  stranger_->say(offering(large_, false));
  stranger_->hear();
  stranger_->say(about_offer(kBytes, 7));
  stranger_->say(one_way());
  EXPECT_TRUE(eventually([&] { return arrived_ == 1; }));
  EXPECT_FALSE(bytes_.future().ready());
  EXPECT_EQ(agent_.counters().requests_received, before + 2) << "or a shutdown waits for it";
}

TEST_F(OfferTest, WhoStopsWaitsForWhoAsks) {
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kRRefControl;
  frame.segments = {Buffer::copy_of(large_)};
  agent_.post(1, frame);
  const uint64_t offer = stranger_->hear().value().offer.id;
  ASSERT_NE(offer, 0u);
  std::thread stopping([&] { agent_.stop(); });
  EXPECT_EQ(stranger_->hear().value().header.kind, wire::Kind::kGoodbye);
  stranger_->say(about_offer(kAsk, offer));
  const auto bytes = stranger_->hear();
  ASSERT_TRUE(bytes);
  EXPECT_EQ(static_cast<uint8_t>(bytes->header.kind), kBytes);
  EXPECT_EQ(bytes->segments.size(), 1u);
  stopping.join();
}

TEST_F(OfferTest, OtherBytesThanWereOfferedEndTheLine) {
  stranger_->say(offering(large_, false));
  stranger_->hear();
  stranger_->say(about_offer(kBytes, 7, {pattern(large_.size() - 1)}));
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(lost_.future().value().code(), Code::kCorrupt);
}

TEST_F(OfferTest, AnAddressThatCannotBeReadIsAskedFor) {
  RawFrame frame = offering(large_);
  frame.addresses[1] = 16;
  stranger_->say(frame);
  EXPECT_EQ(static_cast<uint8_t>(stranger_->hear().value().header.kind), kAsk);
  stranger_->say(about_offer(kBytes, 7, {large_}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
}

TEST_F(OfferTest, WhoSaysThatItCannotReadIsOfferedNothing) {
  EXPECT_TRUE(route().is_read);
  EXPECT_TRUE(route().reads_memory);
  RawFrame ask = about_offer(kAsk, 0);
  put(ask.meta, uint64_t{EPERM});
  stranger_->say(ask);
  EXPECT_TRUE(eventually([&] { return !route().is_read; }));
  EXPECT_THAT(route().why_not_read, HasSubstr("Operation not permitted"));
  EXPECT_TRUE(route().reads_memory);
  call_with(Buffer::copy_of(large_));
  EXPECT_EQ(heard_.offer.id, 0u);
  EXPECT_TRUE(same(heard_.segments.at(1).span(), large_));
}

TEST_F(OfferTest, WhatIsReadCounts) {
  stranger_->say(offering(large_));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(route().bytes_read, large_.size());
  EXPECT_LT(route().bytes_received, large_.size());
}

TEST_F(OfferTest, ABlockThatCannotBeMappedIsReadAndGivenBackAndTheRouteSaysWhy) {
  RawFrame request = offering(large_);
  request.flags |= 16;
  constexpr uint64_t kBlock = 70, kNoDescriptor = 1'000'000;
  request.offer.insert(request.offer.end(), {0, 0, 0, 0, kBlock, 1 << 20, kNoDescriptor, 0});
  stranger_->say(request);
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
  const wire::InFrame taken = stranger_->hear().value(), returned = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(taken.header.kind), kTaken);
  EXPECT_EQ(returned.header.kind, wire::Kind::kReturned);
  EXPECT_EQ(returned.header.request_id, kBlock);
  EXPECT_THAT(route().why_not_mapped, HasSubstr("No such file"));
  EXPECT_EQ(route().bytes_read, large_.size());
  EXPECT_EQ(route().bytes_handed_over, 0u);
  EXPECT_TRUE(eventually([&] { return agent_.counters().idle_memory >= large_.size(); }))
      << "it was copied into memory that counts, and is used again";
}

// The stranger's memory is not what it says.
struct MistakenOfferTest : OfferTest {
  MistakenOfferTest() : OfferTest({1, 3}) {}
};

TEST_F(MistakenOfferTest, IsToldAtOnceAndNothingIsOffered) {
  const wire::InFrame ask = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(ask.header.kind), kAsk);
  EXPECT_EQ(ask.header.request_id, 0u);
  EXPECT_FALSE(route().reads_memory);
  EXPECT_THAT(route().why_not_read, HasSubstr("cannot be told from others"));
  call_with(Buffer::copy_of(large_));
  EXPECT_EQ(heard_.offer.id, 0u);
  // Expect: what is offered all the same is asked for.
  stranger_->say(answer_to(heard_.header.request_id));
  stranger_->say(offering(large_));
  EXPECT_EQ(stranger_->hear().value().header.request_id, 7u);
  stranger_->say(about_offer(kBytes, 7, {large_}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
}

TEST_F(MistakenOfferTest, WhatIsHandedOverAllTheSameIsGivenBackAndAskedFor) {
  ASSERT_TRUE(stranger_->hear());
  RawFrame request = offering(large_);
  request.flags |= 16;
  constexpr uint64_t kBlock = 70;
  request.offer.insert(request.offer.end(), {0, 0, 0, 0, kBlock, 1 << 20, 3, 0});
  stranger_->say(request);
  const wire::InFrame returned = stranger_->hear().value(), ask = stranger_->hear().value();
  EXPECT_EQ(returned.header.kind, wire::Kind::kReturned);
  EXPECT_EQ(returned.header.request_id, kBlock);
  EXPECT_EQ(ask.header.kind, wire::Kind::kAsk);
  EXPECT_EQ(ask.header.request_id, 7u);
  stranger_->say(about_offer(kBytes, 7, {large_}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
}

struct RequiredReadingTest : ConnectionTest, ::testing::WithParamInterface<uint64_t> {
  RequiredReadingTest()
      : ConnectionTest({.cross_memory_attach = CrossMemoryAttach::kRequired}, GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(Features, RequiredReadingTest,
                         ::testing::Values(uint64_t{0}, wire::kReadsOffers));

TEST_P(RequiredReadingTest, APeerThatDoesNotReadOrSaysThatItCannotIsNotCalled) {
  if (GetParam() == wire::kReadsOffers) {
    EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
    RawFrame ask{.kind = 8, .flags = 4, .request_id = 0};
    put(ask.meta, uint64_t{EPERM});
    stranger_->say(ask);
  }
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(lost_.future().value().code(), Code::kUnavailable);
  EXPECT_THAT(lost_.future().value().what(), HasSubstr("tensors cannot be read out of memory"));
  // Expect: the peer hears why the line ends, but where it was not quite open yet.
  std::optional<wire::InFrame> last = stranger_->hear();
  while (last && last->header.kind != wire::Kind::kLineEnd) last = stranger_->hear();
  ASSERT_TRUE(last || GetParam() == wire::kReadsOffers);
  if (!last) return;
  const Error why = wire::decode_error(last->meta.span());
  EXPECT_EQ(why.code(), Code::kUnavailable);
  EXPECT_EQ(why.message(), lost_.future().value().message());
}

TEST_F(ConnectionTest, AnOfferThatWasNotAgreedOnEndsTheLine) {
  const Bytes large = pattern(100'000);
  stranger_->say({.kind = 0x23,
                  .flags = 4 | 8,
                  .segments = {large},
                  .addresses = {reinterpret_cast<uintptr_t>(large.data())},
                  .offer = {7, reinterpret_cast<uintptr_t>(large.data()), 0}});
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(lost_.future().value().code(), Code::kCorrupt);
  EXPECT_EQ(arrived_, 0);
}

}  // namespace
}  // namespace farspan::testing
