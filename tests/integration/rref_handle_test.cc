// The rules under test: rref/rref.h, of handles that refer to nothing, or whose worker has ended.
#include <farspan/farspan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include <farspan/rpc/init/rooms.h>

#include "support/errors.h"
#include "support/held.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

struct Box {
  int64_t content() const { return 7; }
};
using BoxRef = RRef<std::shared_ptr<Box>>;
std::shared_ptr<Box> make_box() { return std::make_shared<Box>(); }
int64_t seven() { return 7; }
int64_t content_of(const BoxRef& ref) { return ref.rpc_sync(&Box::content); }
FARSPAN_REGISTER(make_box, seven, content_of);
FARSPAN_REGISTER_METHODS(Box, content);

class RRefHandle : public ::testing::Test {
 protected:
  RRefHandle() {
    for (int rank = 0; rank < workers_.count(); ++rank) furnish(workers_[rank]);
  }

  void TearDown() override { expect_nothing_held(workers_, but_); }

  Workers workers_;
  std::set<int> but_;
};

void expect_no_value(const BoxRef& ref) {
  const std::vector<std::pair<const char*, std::function<void()>>> uses = {
      {"owner", [&] { ref.owner(); }},
      {"is_owner", [&] { ref.is_owner(); }},
      {"confirmed_by_owner", [&] { ref.confirmed_by_owner(); }},
      {"text", [&] { ref.text(); }},
      {"local_value", [&] { ref.local_value(); }},
      {"rpc_sync", [&] { ref.rpc_sync(&Box::content); }},
      {"rpc_async", [&] { ref.rpc_async(&Box::content); }},
      {"remote", [&] { ref.remote(&Box::content); }},
      {"to_here", [] { RRef<int64_t>().to_here(); }}};
  EXPECT_FALSE(ref.valid());
  EXPECT_EQ(ref, BoxRef());
  for (const auto& [name, use] : uses) {
    SCOPED_TRACE(name);
    const Error error = error_of(use);
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("made empty or moved from"));
  }
}

TEST_F(RRefHandle, ThatRefersToNothingSaysSo) {
  expect_no_value(BoxRef());
  BoxRef first(workers_[0], make_box());
  const BoxRef second = std::move(first);
  expect_no_value(first);  // NOLINT: what a moved-from one does is the rule
  EXPECT_EQ(second.local_value()->content(), 7);
}

TEST_F(RRefHandle, ThatRefersToNothingCannotBePassed) {
  EXPECT_EQ(code_of([&] { workers_[0].rpc_sync("w1", content_of, BoxRef()); }),
            Code::kInvalidArgument);
  const CurrentWorker current(workers_[0]);
  EXPECT_EQ(code_of([] { DistributedOptimizer<torch::optim::SGD>(ParameterRRefs(1), 0.1); }),
            Code::kInvalidArgument);
}

TEST_F(RRefHandle, AfterShutdownSaysSo) {
  const RRef<int64_t> mine(workers_[0], 7);
  const auto other = workers_[0].remote("w1", seven);
  EXPECT_EQ(mine.to_here() + other.to_here(), 14);
  workers_[0].shutdown(false);
  but_ = {0, 1};  // w1 keeps what w0 held until its lease ends
  for (const auto& ref : {mine, other}) {
    EXPECT_EQ(code_of([&] { ref.to_here(); }), Code::kShutdown) << ref.text();
  }
  EXPECT_EQ(code_of([&] { mine.local_value(); }), Code::kShutdown);
  EXPECT_EQ(other.owner().name, "w1");
  EXPECT_TRUE(mine.is_owner());
}

}  // namespace
}  // namespace farspan::testing
