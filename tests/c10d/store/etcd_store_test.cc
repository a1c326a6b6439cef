// What only a store in etcd does. The rules: c10d/store/etcd_store.h.
#include <farspan/c10d/store/etcd_store.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <utility>

#include <farspan/c10d/store/etcd_client.h>

#include "c10d/store/store_server.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using ::testing::HasSubstr;
using testing::StoreServer;

// One server for all, with a prefix for each.
class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = StoreServer::missing(StoreServer::Kind::kEtcd);
    if (!why.empty()) GTEST_SKIP() << why;
    if (!server_) {
      server_ = new StoreServer(StoreServer::Kind::kEtcd,
                                {"--max-request-bytes=" + std::to_string(kMaxRequestBytes)});
    }
    options_.port = server_->port();
    options_.timeout = 60s;
    options_.prefix = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    store_ = std::make_unique<EtcdStore>(options_);
  }
  static void TearDownTestSuite() { delete std::exchange(server_, nullptr); }

  static constexpr int kMaxRequestBytes = 1 << 20;
  static inline StoreServer* server_ = nullptr;
  EtcdStoreOptions options_;
  std::unique_ptr<EtcdStore> store_;
};

TEST_F(EtcdStoreTest, ClearDeletesAllOfTheJobAndNothingElse) {
  options_.prefix = "default";
  store_ = std::make_unique<EtcdStore>(options_);
  options_.prefix = "default/other";
  EtcdStore other(options_);
  other.set("k", "kept");
  other.queue_push("q", "kept");
  store_->set("k", "v");
  store_->queue_push("q", "v");
  store_->clear();
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_EQ(store_->queue_len("q"), 0);
  // The range of all names of the job: base64 of "farspan:default:" and "farspan:default;".
  EXPECT_THAT(testing::http_post(server_->port(), "/v3/kv/range",
                                 R"({"key":"ZmFyc3BhbjpkZWZhdWx0Og==",)"
                                 R"("range_end":"ZmFyc3BhbjpkZWZhdWx0Ow=="})"),
              ::testing::Not(HasSubstr("kvs")));
  EXPECT_EQ(other.get("k"), "kept");
  EXPECT_EQ(other.queue_pop("q"), "kept");
}

TEST_F(EtcdStoreTest, MoreKeysThanATransactionOrAnAnswerTakes) {
  constexpr size_t kKeys = 1'100;
  std::vector<std::string> keys, values;
  for (size_t i = 0; i < kKeys; ++i) {
    keys.push_back(std::to_string(i));
    values.push_back("v" + std::to_string(i));
  }
  store_->multi_set(keys, values);
  EXPECT_EQ(store_->num_keys(), static_cast<int64_t>(kKeys));
  EXPECT_EQ(store_->multi_get(keys), values);
  EXPECT_TRUE(store_->check(keys));
  auto listed = store_->list_keys();
  std::sort(listed.begin(), listed.end());
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(listed, keys);
  store_->delete_key("999");
  EXPECT_FALSE(store_->check(keys));
}

TEST_F(EtcdStoreTest, AKeyThatIsSetTwiceInOneCallHasTheLastValue) {
  store_->multi_set({"k", "l", "k"}, {"1", "2", "3"});
  EXPECT_EQ(store_->get("k"), "3");
  EXPECT_EQ(store_->get("l"), "2");
}

TEST_F(EtcdStoreTest, ALargerValueThanTheServerTakesIsAnErrorWithAdvice) {
  // Its own limit is of bytes as they are, not as they travel.
  store_->set("k", std::string(kMaxRequestBytes - 1'000, 'v'));
  for (const int size : {kMaxRequestBytes + 1, 3 * kMaxRequestBytes}) {
    const std::string value(static_cast<size_t>(size), 'v');
    const Error error = error_of([&] { store_->set("l", value); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_THAT(error.advice(), HasSubstr("--max-request-bytes"));
  }
  EXPECT_FALSE(store_->check({"l"}));
}

TEST_F(EtcdStoreTest, AKeyThatIsGoneAgainDoesNotEndAGet) {
  auto waiting = std::async(std::launch::async, [&] { return store_->get("k", 30s); });
  EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
  // Whether it sees one of these is its luck; with the last one it ends.
  for (int i = 0; i < 5; ++i) {
    store_->set("k", "passing");
    store_->delete_key("k");
  }
  store_->set("k", "staying");
  EXPECT_THAT(waiting.get(), ::testing::AnyOf("passing", "staying"));
}

TEST_F(EtcdStoreTest, AWatchOfWhatWasCompactedIsAtItsEnd) {
  EtcdClient client({"127.0.0.1", server_->port()}, "", "");
  const Deadline deadline = Deadline::after(20s);
  for (int i = 0; i < 3; ++i) store_->set("k", std::to_string(i));
  const auto now = client.transact({{.range = {"k"}}}, deadline).revision;
  const std::string body = R"({"revision":")" + std::to_string(now) + R"("})";
  EXPECT_THAT(testing::http_post(server_->port(), "/v3/kv/compaction", body), HasSubstr("200 OK"));
  EXPECT_EQ(client.watch({{"k"}}, now - 1, deadline).wait(deadline), EtcdWatch::Seen::kEnd);
  EtcdOperation old{.range = {"k"}, .revision = now - 1};
  EXPECT_TRUE(is_compacted(error_of([&] { client.transact({old}, deadline); })));
}

TEST_F(EtcdStoreTest, APasswordNeedsAUser) {
  options_.password = "pw";
  const Error error = error_of([&] { EtcdStore store(options_); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("without a user"));
}

}  // namespace
}  // namespace farspan::dist

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::StoreServer::roles());
}
