// The rules under test: rpc/agent/heartbeat.h, where a SimMessenger drives it as a Connection does:
// who is silent is asked for a sign of life, and given up.
#include <gmock/gmock.h>

#include <map>
#include <optional>

#include "support/sim_calls.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::hours;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SimOptions watchful(uint64_t seed) { return {.seed = seed, .silence_timeout = seconds(4)}; }

using Ranks = std::vector<int>;

class SimSilence : public ::testing::TestWithParam<uint64_t> {
 protected:
  SimSilence() : net(watchful(GetParam())) {
    for (const WorkerInfo& worker : net.workers()) {
      net.at(worker.rank)->on_worker_lost([this, here = worker.rank](int rank, const Error&) {
        lost[here].push_back(rank);
      });
    }
    net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                         [this](Request request) { kept.emplace(std::move(request)); });
  }

  SimNetwork net;
  std::map<int, Ranks> lost;    // what each worker heard
  std::optional<Request> kept;  // by w1, unanswered
};

TEST_P(SimSilence, AWorkerThatStandsStillIsGivenUp) {
  const auto endless = send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.freeze("w1");
  const TimePoint begun = net.scheduler().now();
  EXPECT_TRUE(net.at("w0")->wait(*endless.state(), Deadline::never(), 1));
  EXPECT_EQ(code_of(endless), Code::kDisconnected);
  EXPECT_THAT(endless.error().what(), HasSubstr("does not answer pings"));
  // Expect: three pings, a second apart, were not answered, whatever of a second had passed before.
  EXPECT_GE(net.scheduler().now() - begun, seconds(3));
  EXPECT_LE(net.scheduler().now() - begun, seconds(5));
  EXPECT_THAT(lost[0], ElementsAre(1));
  // Expect: the other end hears of it when it moves again; its answer is too late, and the next
  // call goes over a new line.
  net.thaw("w1");
  net.scheduler().drain();
  EXPECT_THAT(lost[1], ElementsAre(0));
  kept->reply({});
  kept.reset();
  const auto next = send_call(net, "w0", "w1");
  net.scheduler().drain();
  kept->reply({});
  net.scheduler().drain();
  EXPECT_EQ(code_of(next), Code::kOk);
}

TEST_P(SimSilence, ABusyWorkerIsWaitedForAsLongAsItTakes) {
  const auto endless = send_call(net, "w0", "w1");
  net.scheduler().advance(hours(1));
  EXPECT_FALSE(endless.ready());
  kept->reply({});
  net.scheduler().drain();
  EXPECT_EQ(code_of(endless), Code::kOk);
  // Expect: nobody looks any more, so nothing is left to happen.
  net.scheduler().advance(seconds(4));
  const size_t events = net.trace().count();
  net.scheduler().advance(hours(1));
  EXPECT_EQ(net.trace().count(), events);
  EXPECT_THAT(lost, IsEmpty());
}

TEST_P(SimSilence, WhoStoodStillItselfBlamesNobody) {
  const auto endless = send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.freeze("w0");
  net.scheduler().advance(hours(1));
  net.thaw("w0");
  net.scheduler().advance(hours(1));
  EXPECT_FALSE(endless.ready());
  EXPECT_THAT(lost, IsEmpty());
  kept->reply({});
  net.scheduler().drain();
  EXPECT_EQ(code_of(endless), Code::kOk);
}

TEST_P(SimSilence, ASilentPartitionIsNoticed) {
  const auto endless = send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.partition({"w0"}, {"w1"});
  net.scheduler().advance(seconds(6));
  EXPECT_EQ(code_of(endless), Code::kDisconnected);
  EXPECT_THAT(lost[0], ElementsAre(1));
  EXPECT_THAT(lost[1], IsEmpty());  // it waits for nobody, and hears nothing through the partition
  net.heal();
  net.scheduler().drain();
  EXPECT_THAT(lost[1], ElementsAre(0));
}

TEST_P(SimSilence, CallsWithADeadlineNeedNoSigns) {
  net.freeze("w1");
  const auto patient = send_call(net, "w0", "w1", 1, Deadline(net.scheduler().now() + hours(1)));
  net.scheduler().advance(hours(2));
  EXPECT_EQ(code_of(patient), Code::kTimeout);
  EXPECT_THAT(lost, IsEmpty());
}

TEST_P(SimSilence, AWatchIsAWaitWithoutADeadline) {
  EXPECT_EQ(net.at("w0")->watch(1), nullptr);  // there is no line to lose
  send_post(net, "w0", "w1", 1);
  net.scheduler().drain();
  auto watch = net.at("w0")->watch(1);
  net.freeze("w1");
  net.scheduler().advance(seconds(6));
  EXPECT_THAT(lost[0], ElementsAre(1));
  net.thaw("w1");
  // Expect: when it goes nobody looks any more.
  send_post(net, "w0", "w1", 1);
  net.scheduler().drain();
  watch = net.at("w0")->watch(1);
  watch = nullptr;
  net.freeze("w1");
  net.scheduler().advance(hours(1));
  EXPECT_THAT(lost[0], ElementsAre(1));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimSilence, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace farspan::testing
