// The rules under test: autograd/README.md, "Passes", one message at a time.
#include <farspan/autograd/pass_protocol.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace farspan::testing {
namespace {

using namespace dist_autograd;  // NOLINT: the message and action names are the subject here
using std::chrono::seconds;

constexpr ContextId kContext{17};
constexpr TimePoint kNow{std::chrono::hours(1)};
constexpr SendId kFirst{1}, kSecond{2};

std::string name(int rank) { return "w" + std::to_string(rank); }

template <class Kind>
std::vector<Kind> all(const PassActions& actions) {
  std::vector<Kind> found;
  for (const PassAction& action : actions) {
    if (const Kind* kind = std::get_if<Kind>(&action)) found.push_back(*kind);
  }
  return found;
}

// The messages of one kind among the actions, with their receivers.
template <class Kind>
std::vector<std::pair<int, Kind>> sent(const PassActions& actions) {
  std::vector<std::pair<int, Kind>> found;
  for (const Send& send : all<Send>(actions)) {
    if (const Kind* kind = std::get_if<Kind>(&send.message)) found.emplace_back(send.to, *kind);
  }
  return found;
}

// Worker 1, with the worker 0 as the initiator of others' passes.
class PassProtocolTest : public ::testing::Test {
 protected:
  PassActions receive(int from, const PassMessage& message) {
    PassActions actions;
    protocol.received(from, message, kNow, actions);
    return actions;
  }
  PassActions begin(PassMode mode = PassMode::kExact, Deadline deadline = Deadline::never()) {
    PassActions actions;
    mine = protocol.begin(kContext, mode, false, deadline, kNow, actions);
    return actions;
  }
  PassActions walked(const PassId& pass, const PassActions& before, const Walked& found) {
    PassActions actions;
    protocol.walked(pass, all<Walk>(before).at(0).token, found, kNow, actions);
    return actions;
  }
  Question question(uint64_t number = 1) const {
    return {.pass = {kContext, 0, number}, .terms = {}, .id = 5, .sends = {kFirst}};
  }
  // Brings the pass of worker 0 to the point where gradients flow; `receives` are reached.
  PassId join_and_run(const Walked& found = {}) {
    const PassActions asked = receive(0, question());
    PassActions answered = walked(question().pass, asked, found);
    for (const auto& [to, further] : sent<Question>(answered)) {
      receive(to, Answer{further.pass, further.id, {to}});
    }
    EXPECT_EQ(all<Start>(receive(0, Go{question().pass})).size(), 1u);
    return question().pass;
  }

  PassProtocol protocol{1, name};
  PassId mine;
};

TEST_F(PassProtocolTest, AnswersAtOnceWhenAQuestionLeadsNowhereElse) {
  const PassActions asked = receive(0, question());
  const auto walks = all<Walk>(asked);
  ASSERT_EQ(walks.size(), 1u);
  EXPECT_EQ(walks[0].sends, std::vector<SendId>{kFirst});
  EXPECT_FALSE(walks[0].roots || walks[0].all_sends);
  const auto answers = sent<Answer>(walked(question().pass, asked, {}));
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].first, 0);
  EXPECT_EQ(answers[0].second.question, 5u);
  EXPECT_EQ(answers[0].second.workers, std::vector<int>{1});
}

TEST_F(PassProtocolTest, AnswersAfterTheQuestionsThatAQuestionCaused) {
  const PassActions asked = receive(0, question());
  const Walked found{.receives = {{2, SendId{8}}, {2, SendId{9}}, {3, SendId{10}}}, .sends = {}};
  const PassActions further = walked(question().pass, asked, found);
  EXPECT_TRUE(sent<Answer>(further).empty());
  const auto questions = sent<Question>(further);
  ASSERT_EQ(questions.size(), 2u) << "one for each worker";
  EXPECT_EQ(questions[0].second.sends.size(), 2u);
  const auto answer = [&](size_t which, std::vector<int> workers) {
    const auto& [to, q] = questions[which];
    return sent<Answer>(receive(to, Answer{q.pass, q.id, std::move(workers)}));
  };
  EXPECT_TRUE(answer(0, {2, 4}).empty());
  EXPECT_TRUE(answer(0, {2, 4}).empty()) << "it came twice";
  const auto answers = answer(1, {3});
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].second.workers, (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(PassProtocolTest, TellsAllParticipantsToGoAndEndsWithTheLastOfThem) {
  const PassActions begun = begin();
  EXPECT_TRUE(all<Walk>(begun).at(0).roots);
  const PassActions asking = walked(mine, begun, {.receives = {{2, kFirst}}, .sends = {}});
  const uint64_t id = sent<Question>(asking).at(0).second.id;
  PassActions actions = receive(2, Answer{mine, id, {2, 3, 1}});
  ASSERT_EQ(sent<Go>(actions).size(), 2u);
  EXPECT_EQ(all<Start>(actions).size(), 1u);
  actions.clear();
  protocol.gradient_left(mine, kFirst, kNow, actions);
  EXPECT_EQ(sent<GradientHead>(actions).at(0).first, 2);
  EXPECT_TRUE(all<Complete>(receive(3, Done{mine, {}})).empty());
  actions.clear();
  protocol.finished(mine, actions);
  EXPECT_EQ(all<Retire>(actions).size(), 1u);
  EXPECT_TRUE(all<Complete>(actions).empty());
  EXPECT_NE(protocol.describe().find("waits for the end at 'w2'"), std::string::npos);
  const auto complete = all<Complete>(receive(2, Done{mine, {}}));
  ASSERT_EQ(complete.size(), 1u);
  EXPECT_FALSE(complete[0].error);
  EXPECT_EQ(protocol.active(), 0u);
}

TEST_F(PassProtocolTest, TakesAGradientForAGoThatIsLate) {
  const PassActions asked = receive(0, question());
  walked(question().pass, asked, {});
  PassActions actions = receive(0, GradientHead{question().pass, {}, kFirst});
  EXPECT_EQ(all<Start>(actions).size(), 1u);
  EXPECT_EQ(all<Feed>(actions).size(), 1u);
  EXPECT_TRUE(receive(0, GradientHead{question().pass, {}, kFirst}).empty()) << "it came twice";
  EXPECT_TRUE(receive(0, Go{question().pass}).empty());
  actions.clear();
  protocol.finished(question().pass, actions);
  EXPECT_EQ(sent<Done>(actions).at(0).first, 0);
  EXPECT_TRUE(receive(0, GradientHead{question().pass, {}, kFirst}).empty()) << "it is over";
  EXPECT_TRUE(receive(0, question()).empty()) << "it is over";
}

TEST_F(PassProtocolTest, RefusesASecondPassOfAContextWhileOneIsUnderWay) {
  begin();
  try {
    begin();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_NE(error.message().find("begun by 'w1'"), std::string::npos);
  }
  const auto aborts = sent<Abort>(receive(0, question()));
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].second.why.code(), Code::kInvalidArgument);
  EXPECT_EQ(aborts[0].second.why.worker(), "w1");
  EXPECT_EQ(protocol.active(), 1u) << "the first one goes on";
}

TEST_F(PassProtocolTest, LeavesAPassThatItsInitiatorHasLeftAndTellsThoseWhoJoinedThroughIt) {
  walked(question(1).pass, receive(0, question(1)), {.receives = {{2, kSecond}}, .sends = {}});
  PassActions actions = receive(0, question(2));
  EXPECT_EQ(all<Cancel>(actions).at(0).pass.number, 1u);
  EXPECT_EQ(sent<Abort>(actions).at(0).first, 2);
  EXPECT_EQ(all<Walk>(actions).at(0).pass.number, 2u);
  actions = receive(0, question(1));
  EXPECT_TRUE(all<Walk>(actions).empty());
  EXPECT_EQ(protocol.active(), 1u);
}

TEST_F(PassProtocolTest, KnowsAPassThatWasAbortedBeforeItsFirstMessageCame) {
  receive(0, Abort{question().pass, Error(Code::kRemote, "no")});
  const PassActions late = receive(3, question());
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(sent<Abort>(late).at(0).first, 3) << "who asks has not heard of it";
  EXPECT_EQ(sent<Abort>(late)[0].second.why.message(), "no");
  EXPECT_EQ(protocol.active(), 0u);
}

TEST_F(PassProtocolTest, AnswersForAReleasedContextWithAnError) {
  PassActions none;
  protocol.release(kContext, none);
  EXPECT_TRUE(none.empty());
  const auto aborts = sent<Abort>(receive(0, question()));
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].second.why.code(), Code::kCancelled);
  EXPECT_THROW(begin(), Error);
  EXPECT_TRUE(receive(0, Go{question().pass}).empty());
  EXPECT_TRUE(receive(0, GradientHead{question().pass, {}, kFirst}).empty());
  const GradientHead fast{question().pass, {.mode = PassMode::kFast}, kFirst};
  EXPECT_EQ(sent<Abort>(receive(0, fast)).size(), 1u);
  EXPECT_TRUE(receive(0, Abort{question().pass, Error(Code::kRemote, "no")}).empty());
}

TEST_F(PassProtocolTest, TellsInitiatorAndNeighboursOfAnErrorWithTheNameOfTheWorker) {
  const PassActions asked = receive(4, Question{{kContext, 0, 1}, {}, 5, {kFirst}});
  walked({kContext, 0, 1}, asked, {.receives = {{2, kSecond}}, .sends = {}});
  PassActions actions;
  protocol.failed({kContext, 0, 1}, Error(Code::kRemote, "a node threw"), actions);
  EXPECT_EQ(all<Cancel>(actions).size(), 1u);
  std::vector<int> told;
  for (const auto& [to, abort] : sent<Abort>(actions)) {
    told.push_back(to);
    EXPECT_EQ(abort.why.worker(), "w1");
    EXPECT_EQ(abort.why.operation(), "backward pass 1 of context 17");
  }
  EXPECT_EQ(told, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(protocol.active(), 0u);
}

TEST_F(PassProtocolTest, TellsAnErrorOnToAllButWhoToldIt) {
  const PassActions asked = receive(0, question());
  walked(question().pass, asked, {.receives = {{2, kSecond}}, .sends = {}});
  const PassActions actions =
      receive(2, Abort{question().pass, Error(Code::kRemote, "no").worker("w2")});
  ASSERT_EQ(sent<Abort>(actions).size(), 1u);
  EXPECT_EQ(sent<Abort>(actions)[0].first, 0);
  EXPECT_EQ(sent<Abort>(actions)[0].second.why.worker(), "w2");
}

TEST_F(PassProtocolTest, NeedsOnlyThePeersThatStillOweSomething) {
  const PassId pass = join_and_run({.receives = {{2, kSecond}}, .sends = {}});
  PassActions actions;
  protocol.gradient_left(pass, kSecond, kNow, actions);
  actions.clear();
  protocol.peer_lost(2, Error(Code::kDisconnected, "gone"), actions);
  EXPECT_TRUE(actions.empty()) << "its gradient has left, the initiator watches the rest";
  protocol.peer_lost(3, Error(Code::kDisconnected, "gone"), actions);
  EXPECT_TRUE(actions.empty()) << "a stranger";
  protocol.peer_lost(0, Error(Code::kDisconnected, "gone"), actions);
  EXPECT_EQ(all<Cancel>(actions).at(0).why.worker(), "w0");
}

TEST_F(PassProtocolTest, EndsByItsDeadlineSayingWhatItWaitedFor) {
  const PassActions begun = begin(PassMode::kExact, Deadline(kNow + seconds(5)));
  EXPECT_EQ(all<ArmTimer>(begun).at(0).at, kNow + seconds(5));
  const PassActions asking = walked(mine, begun, {.receives = {{2, kFirst}}, .sends = {}});
  EXPECT_EQ(sent<Question>(asking).at(0).second.terms.remaining, seconds(5));
  PassActions actions;
  protocol.timer(mine, kNow + seconds(4), actions);
  EXPECT_EQ(all<ArmTimer>(actions).size(), 1u) << "too early";
  actions.clear();
  protocol.timer(mine, kNow + seconds(5), actions);
  const auto complete = all<Complete>(actions);
  ASSERT_EQ(complete.size(), 1u);
  EXPECT_EQ(complete[0].error->code(), Code::kTimeout);
  EXPECT_NE(complete[0].error->message().find("waits for answers of 'w2'"), std::string::npos)
      << complete[0].error->what();
}

TEST_F(PassProtocolTest, SaysWhatItWaitedForItselfWhenAnotherOneIsQuickerToSaySo) {
  for (const seconds after : {seconds(4), seconds(5)}) {
    const PassActions begun = begin(PassMode::kExact, Deadline(kNow + seconds(5)));
    walked(mine, begun, {.receives = {{2, kFirst}}, .sends = {}});
    PassActions actions;
    protocol.received(2, Abort{mine, Error(Code::kTimeout, "theirs")}, kNow + after, actions);
    const Error error = all<Complete>(actions).at(0).error.value();
    EXPECT_EQ(error.code(), Code::kTimeout);
    const bool own = error.message().find("waits for answers of 'w2'") != std::string::npos;
    EXPECT_EQ(own, after == seconds(5)) << error.what();
  }
}

TEST_F(PassProtocolTest, KeepsTheDeadlineOfTheInitiator) {
  Question asked = question();
  asked.terms.remaining = seconds(3);
  EXPECT_EQ(all<ArmTimer>(receive(0, asked)).at(0).at, kNow + seconds(3));
  PassActions actions;
  protocol.timer(asked.pass, kNow + seconds(3), actions);
  EXPECT_EQ(sent<Abort>(actions).at(0).second.why.code(), Code::kTimeout);
}

TEST_F(PassProtocolTest, WatchesWhomItHasMetUnlessThereIsADeadline) {
  const auto watched = [](const PassActions& actions) {
    std::vector<int> ranks;
    for (const Watch& watch : all<Watch>(actions)) ranks.push_back(watch.rank);
    return ranks;
  };
  const PassActions asked = receive(0, question());
  EXPECT_EQ(watched(asked), (std::vector<int>{0}));
  const Walked found{.receives = {{2, kSecond}, {0, SendId{3}}, {1, SendId{4}}}, .sends = {}};
  EXPECT_EQ(watched(walked(question().pass, asked, found)), (std::vector<int>{2}));
  Question limited = question();
  limited.pass.context = ContextId{18};
  limited.terms.remaining = seconds(5);
  EXPECT_TRUE(watched(receive(0, limited)).empty());
}

TEST_F(PassProtocolTest, FailsOnAGradientThatIsNotExpected) {
  const PassId pass = join_and_run();
  const PassActions actions = receive(3, GradientHead{pass, {}, kFirst});  // that of w0
  EXPECT_TRUE(all<Feed>(actions).empty());
  EXPECT_EQ(all<Cancel>(actions).at(0).why.code(), Code::kCorrupt);
  EXPECT_NE(all<Cancel>(actions)[0].why.message().find("'w3'"), std::string::npos);
}

TEST_F(PassProtocolTest, FailsOnASecondQuestionAboutASend) {
  receive(0, question());
  Question again = question();
  again.id = 6;
  EXPECT_EQ(all<Cancel>(receive(3, again)).at(0).why.code(), Code::kCorrupt);
}

TEST_F(PassProtocolTest, FastModeWalksAllSendsAtTheFirstGradientAndKeepsItUntilThen) {
  const GradientHead head{{kContext, 0, 1}, {.mode = PassMode::kFast}, kFirst};
  const PassActions first = receive(0, head);
  EXPECT_TRUE(all<Walk>(first).at(0).all_sends);
  EXPECT_EQ(all<Keep>(first).size(), 1u);
  EXPECT_TRUE(receive(0, head).empty()) << "it came twice";
  PassActions actions = walked(
      head.pass, first, {.receives = {{2, SendId{9}}}, .sends = {{0, kFirst}, {3, kSecond}}});
  EXPECT_EQ(all<Start>(actions).size(), 1u);
  EXPECT_EQ(all<Feed>(actions).at(0).send, kFirst);
  EXPECT_NE(protocol.describe().find("waits for 1 gradients from 'w3'"), std::string::npos);
  GradientHead second = head;
  second.send = kSecond;
  EXPECT_EQ(all<Feed>(receive(3, second)).size(), 1u);
  actions.clear();
  protocol.gradient_left(head.pass, SendId{9}, kNow, actions);
  protocol.finished(head.pass, actions);
  const auto done = sent<Done>(actions);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].second.contacted, std::vector<int>{2});
}

TEST_F(PassProtocolTest, FastModeEndsWhenAllThatWereContactedHaveEnded) {
  const PassActions begun = begin(PassMode::kFast);
  EXPECT_TRUE(all<Walk>(begun).at(0).all_sends && all<Walk>(begun)[0].roots);
  PassActions actions = walked(mine, begun, {.receives = {{2, kFirst}}, .sends = {}});
  protocol.gradient_left(mine, kFirst, kNow, actions);
  protocol.finished(mine, actions);
  EXPECT_TRUE(all<Complete>(actions).empty());
  EXPECT_TRUE(all<Complete>(receive(3, Done{mine, {}})).empty()) << "before its contact's Done";
  EXPECT_EQ(all<Complete>(receive(2, Done{mine, {3}})).size(), 1u);
}

TEST_F(PassProtocolTest, FastModeTellsLateContactsThatThePassHasFailed) {
  const PassActions begun = begin(PassMode::kFast);
  walked(mine, begun, {.receives = {{2, kFirst}}, .sends = {}});
  PassActions actions;
  protocol.failed(mine, Error(Code::kRemote, "no"), actions);
  const auto aborts = sent<Abort>(receive(2, Done{mine, {3}}));
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].first, 3);
}

TEST_F(PassProtocolTest, IgnoresWhatItKnowsNothingOf) {
  const PassId unknown{ContextId{99}, 1, 1};
  PassActions actions;
  protocol.walked(unknown, 1, {}, kNow, actions);
  protocol.gradient_left(unknown, kFirst, kNow, actions);
  protocol.finished(unknown, actions);
  protocol.failed(unknown, Error(Code::kInternal, "?"), actions);
  protocol.timer(unknown, kNow, actions);
  protocol.received(0, Answer{unknown, 1, {}}, kNow, actions);
  protocol.received(0, Go{unknown}, kNow, actions);
  protocol.received(0, Done{unknown, {}}, kNow, actions);
  EXPECT_TRUE(actions.empty());
}

}  // namespace
}  // namespace farspan::testing
