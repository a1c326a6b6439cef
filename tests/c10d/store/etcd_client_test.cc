// What clients of etcd make of what is said to them, by something else or too late. The rules:
// c10d/store/etcd_client.h, etcd_http.h and etcd_store.h.
#include <farspan/c10d/store/etcd_client.h>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <thread>

#include <farspan/c10d/store/etcd_http.h>
#include <farspan/c10d/store/etcd_store.h>

#include "c10d/store/fake_server.h"
#include "support/errors.h"

// Instead of the system's: a name service that hangs.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto system = reinterpret_cast<decltype(&getaddrinfo)>(
      reinterpret_cast<uintptr_t>(dlsym(RTLD_NEXT, "getaddrinfo")));
  if (std::strcmp(name, "hangs.invalid") != 0) return system(name, service, hints, found);
  if (hints && (hints->ai_flags & AI_NUMERICHOST)) return EAI_NONAME;
  std::this_thread::sleep_for(std::chrono::seconds(3));
  return EAI_AGAIN;
}

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::answering_http;
using testing::error_of;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using ::testing::Not;

const EtcdOperation kGetK = {.range = {"k"}};
const EtcdOperation kGetAllOfK = {.range = etcd_keys_with("k")};
constexpr const char* kHeader = R"("header":{"revision":"7"})";

// Of a transaction that did one thing.
std::string did(const std::string& response) {
  return std::string("{") + kHeader + R"(,"succeeded":true,"responses":[)" + response + "]}";
}
// Of a range; keys and values are base64.
std::string found(const std::string& keys_and_values) {
  return did(R"({"response_range":{"kvs":[)" + keys_and_values + "]}}");
}

EtcdOutcome ask(const HttpAnswer& answer, const EtcdOperation& operation) {
  FakeServer server(answering_http([&](auto&, auto&) { return answer; }));
  return EtcdClient({"127.0.0.1", server.port()}, "", "")
      .transact({operation}, FakeServer::deadline());
}

TEST(EtcdClient, WhatIsNoAnswerToTheQuestionIsAnError) {
  const std::string a = R"({"key":"a2E=","mod_revision":"1"})", b = R"({"key":"a2I="})";
  EXPECT_EQ(ask({200, found(a + "," + b)}, kGetAllOfK).results[0].entries.size(), 2u);
  const std::string wrong[] = {
      "",
      "no JSON",
      "[]",
      "{}",
      "7",
      "null",
      R"({"succeeded":true})",
      R"({"header":7,"succeeded":true,"responses":[{"response_range":{}}]})",
      R"({"header":{"revision":7},"succeeded":true,"responses":[{"response_range":{}}]})",
      R"({"header":{"revision":"7"},"responses":[{"response_range":{}}]})",
      R"({"header":{"revision":"7"},"succeeded":1,"responses":[{"response_range":{}}]})",
      R"({"header":{"revision":"7"},"succeeded":true,"responses":{}})",
      did(""),
      did("7"),
      did("{}"),
      did(R"({"response_put":{}})"),
      did(R"({"response_range":[]})"),
      did(R"({"response_range":{"count":"many"}})"),
      did(R"({"response_range":{"kvs":{}}})"),
      found("7"),
      found(R"({"key":7})"),
      found(R"({"key":"?"})"),
      found(R"({"key":"eA=="})"),  // another key
      found(R"({"key":"a2E=","mod_revision":"-1"})"),
      found(b + "," + a),
      found(a + "," + a)};  // not in order
  for (const std::string& body : wrong) {
    const Error error = error_of([&] { ask({200, body}, kGetAllOfK); });
    EXPECT_EQ(error.code(), Code::kCorrupt) << body;
    EXPECT_THAT(error.advice(), HasSubstr("something else")) << body;
  }
}

TEST(EtcdClient, WhatTheServerOrAProxyRefusesIsSaidByItsKind) {
  const auto said = [](const std::string& text, int code) {
    return R"({"error":")" + text + R"(","message":")" + text + R"(","code":)" +
           std::to_string(code) + "}";
  };
  const std::tuple<HttpAnswer, Code> all[] = {
      {{503, said("etcdserver: request timed out", 14)}, Code::kDisconnected},
      {{503, said("etcdserver: leader changed", 14)}, Code::kDisconnected},
      {{504, said("context deadline exceeded", 4)}, Code::kDisconnected},
      {{503, said("etcdserver: no leader", 14)}, Code::kUnavailable},
      {{502, "<html>Bad Gateway</html>"}, Code::kUnavailable},
      {{503, ""}, Code::kUnavailable},
      {{504, ""}, Code::kUnavailable},
      {{429, said("etcdserver: mvcc: database space exceeded", 8)}, Code::kOverloaded},
      {{400, said("etcdserver: too many operations in txn request", 3)}, Code::kInvalidArgument},
      {{404, "Not Found"}, Code::kCorrupt}};
  for (const auto& [answer, code] : all) {
    const Error error = error_of([&, &answer = answer] { ask(answer, kGetK); });
    EXPECT_EQ(error.code(), code) << answer.status << answer.body;
    EXPECT_FALSE(error.advice().empty()) << answer.body;
  }
}

TEST(EtcdClient, AnErrorThatQuotesThePasswordIsNotShown) {
  FakeServer server(answering_http([](auto&, auto& body) {
    return HttpAnswer{
        400, R"({"code":3,"message":"what is )" + body.substr(body.find("s3c"), 6) + R"("})"};
  }));
  EtcdClient client({"127.0.0.1", server.port()}, "alice", "s3cret");
  const Error error = error_of([&] { client.transact({kGetK}, FakeServer::deadline()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), Not(HasSubstr("s3c")));
}

TEST(EtcdClient, AWatchThatTheServerEndsOrRefusesIsAtItsEnd) {
  const HttpAnswer all[] = {{200, ""},
                            {200, R"({"result":{"created":true}})"},
                            {200, R"({"result":{"canceled":true,"compact_revision":"5"}})"
                                  "\n"},
                            {503, "<html>Bad Gateway</html>"},
                            {401, R"({"error":"etcdserver: invalid auth token"})"}};
  for (const HttpAnswer& answer : all) {
    FakeServer server(answering_http([&](auto&, auto&) { return answer; }));
    EtcdClient client({"127.0.0.1", server.port()}, "", "");
    auto watch = client.watch({{"k"}}, 7, FakeServer::deadline());
    EXPECT_EQ(watch.wait(FakeServer::deadline()), EtcdWatch::Seen::kEnd) << answer.body;
  }
}

TEST(EtcdHttp, ANameServiceThatHangsDoesNotOutlastTheDeadline) {
  EtcdHttp http({"hangs.invalid", 1});
  const TimePoint begun = Clock::now();
  const Error error = error_of([&] { http.post("/", "", "", Deadline::after(50ms)); });
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_THAT(error.advice(), HasSubstr("name service"));
  EXPECT_LT(Clock::now() - begun, 2s);
}

TEST(EtcdHttp, NothingIsAskedAfterTheDeadline) {
  std::atomic<int> requests{0};
  FakeServer server(answering_http([&](auto&, auto&) {
    ++requests;
    return HttpAnswer();
  }));
  EtcdHttp http({"127.0.0.1", server.port()});
  http.post("/", "", "", FakeServer::deadline());
  EXPECT_EQ(error_of([&] { http.post("/", "", "", Deadline::after(0s)); }).code(), Code::kTimeout);
  EXPECT_EQ(http.post("/", "", "", FakeServer::deadline()).status, 200);
  EXPECT_EQ(requests, 2);
}

TEST(EtcdHttp, WithoutADescriptorItSaysWhatToRaise) {
  FakeServer server(answering_http([](auto&, auto&) { return HttpAnswer(); }));
  EtcdHttp http({"127.0.0.1", server.port()});
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const Error error = error_of([&] { http.post("/", "", "", FakeServer::deadline()); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(error.code(), Code::kOverloaded) << error.what();
  EXPECT_THAT(error.advice(), HasSubstr("open files"));
}

// A server with one value in every queue; what it says of each request may take a time.
class SlowQueue : public ::testing::Test {
 protected:
  HttpAnswer answer(const std::string& body) {
    if (body.find("request_delete_range") != std::string::npos) {
      ++takes_;
      std::this_thread::sleep_for(take_.load());
      if (take_.load() == 0ms) throw Error(Code::kDisconnected, "it dies");
      return {200, did(R"({"response_delete_range":{"deleted":"1"}})")};
    }
    if (body.find(R"("count_only":true)") != std::string::npos) {
      return {200, did(R"({"response_range":{}})")};
    }
    std::this_thread::sleep_for(look_.load());
    // "farspan:default:q:1:q:" and sixteen digits; "v".
    return {200, found(R"({"key":"ZmFyc3BhbjpkZWZhdWx0OnE6MTpxOjAwMDAwMDAwMDAwMDAwMDc=",)"
                       R"("value":"dg==","mod_revision":"7"})")};
  }
  Error error_of_pop(Millis timeout) {
    return error_of([&] { store().queue_pop("q", timeout); });
  }
  EtcdStore store() {
    EtcdStoreOptions options;
    options.port = server_.port();
    return EtcdStore(options, {.pop_grace = grace_});
  }

  std::atomic<Millis> look_{0ms}, take_{1ms};
  std::atomic<int> takes_{0};
  Millis grace_{20'000};
  FakeServer server_{answering_http([this](auto&, auto& body) { return answer(body); })};
};

TEST_F(SlowQueue, AValueThatIsUnderWayAtTheDeadlineIsNotLost) {
  take_ = 200ms;
  std::string value;  // where the time is over before it is under way, it is tried again
  const Deadline limit = Deadline::after(60s);
  while (takes_ == 0 && !limit.expired()) {
    try {
      value = store().queue_pop("q", 100ms);
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(value, "v");
}

TEST_F(SlowQueue, NothingIsTakenAfterTheDeadline) {
  look_ = 150ms;
  grace_ = 1ms;
  EXPECT_EQ(error_of_pop(100ms).code(), Code::kTimeout);
  EXPECT_EQ(takes_, 0);
}

TEST_F(SlowQueue, APopThatMayHaveTakenAValueSaysSo) {
  take_ = 500ms;
  grace_ = 100ms;
  Error late = error_of_pop(50ms);
  const Deadline limit = Deadline::after(60s);
  while (takes_ == 0 && !limit.expired())
    late = error_of_pop(50ms);  // its time was over before it asked for it
  EXPECT_EQ(late.code(), Code::kTimeout);
  EXPECT_THAT(late.message(), HasSubstr("is lost"));
  take_ = 0ms;
  const Error gone = error_of_pop(20s);
  EXPECT_EQ(gone.code(), Code::kDisconnected);
  EXPECT_THAT(gone.message(), HasSubstr("is lost"));
}

TEST(EtcdStore, AListThatACompactionInterruptsBeginsAgain) {
  // Pages of 1000: "farspan:default:k:" and three digits, whose base64 has four characters.
  const auto digits = [](int number) {
    const char* all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const std::string text = std::to_string(1000 + number).substr(1);
    const int bits = text[0] << 16 | text[1] << 8 | text[2];
    std::string coded;
    for (int shift : {18, 12, 6, 0}) coded += all[bits >> shift & 63];
    return coded;
  };
  std::string page;
  for (int i = 0; i < 1000; ++i) {
    page += (i > 0 ? "," : "") + (R"({"key":"ZmFyc3BhbjpkZWZhdWx0Oms6)" + digits(i) + R"("})");
  }
  std::atomic<int> second_pages{0};
  FakeServer server(answering_http([&](auto&, auto& body) -> HttpAnswer {
    if (body.find(R"("count_only":true)") != std::string::npos) {
      return {200, did(R"({"response_range":{}})")};
    }
    if (body.find(R"("revision":"0")") != std::string::npos) return {200, found(page)};
    if (++second_pages > 1) return {200, found("")};
    return {400,
            R"({"code":11,"message":"etcdserver: mvcc: required revision has been compacted"})"};
  }));
  EtcdStoreOptions options;
  options.port = server.port();
  const auto keys = EtcdStore(options).list_keys();
  EXPECT_EQ(keys.size(), 1000u);
  EXPECT_EQ(keys.front(), "000");
  EXPECT_EQ(second_pages, 2);
}

TEST(EtcdHttp, ARequestThatGetsNoAnswerIsNotSentAgain) {
  std::atomic<int> requests{0};
  // Answers the first request of all, and closes the connection at every other one.
  FakeServer server(answering_http([&](auto&, auto&) {
    if (++requests > 1) throw Error(Code::kDisconnected, "it closes");
    return HttpAnswer{200, "{}"};
  }));
  EtcdHttp http({"127.0.0.1", server.port()});
  EXPECT_EQ(http.post("/", "{}", "", FakeServer::deadline()).body, "{}");
  const Error error = error_of([&] { http.post("/", "{}", "", FakeServer::deadline()); });
  EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
  EXPECT_EQ(requests, 2);
}

}  // namespace
}  // namespace farspan::dist
