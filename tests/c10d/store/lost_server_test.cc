// The rule under test: c10d/store/tcp_store.h: a server whose process dies fails its clients at
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include <farspan/c10d/store/tcp_store.h>
#include <farspan/c10d/store/tcp_store_server.h>

#include "support/errors.h"
#include "support/eventually.h"
#include "support/processes.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::error_of;
using testing::eventually;
using ::testing::HasSubstr;
using testing::Process;

// Serves a store until it is killed, and says where, and how many clients wait.
int serve() {
  const auto server = TcpStoreServer::start();
  std::printf("port %d\n", int{server->port()});
  size_t told = 0;
  for (;;) {
    std::fflush(stdout);
    eventually([&] { return server->waits() != told; });
    told = server->waits();
    std::printf("waits %zu\n", told);
  }
}

bool says(const Process& process, const std::string& text) {
  return eventually([&] { return process.output().find(text) != std::string::npos; }, 20s);
}

TEST(LostServer, FailsEveryClientThatWaitsAtOnceAndIsNamed) {
  Process server("serve");
  ASSERT_TRUE(says(server, "\n")) << server.output();
  const std::string output = server.output();
  const int port = std::stoi(output.substr(output.find("port ") + 5));
  TcpStoreOptions options;
  options.host = "127.0.0.1";
  options.port = static_cast<uint16_t>(port);
  options.timeout = 60s;
  std::vector<std::future<Error>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [options] {
      TcpStore client(options);
      return error_of([&] { client.get("never"); });
    }));
  }
  ASSERT_TRUE(says(server, "waits 4\n")) << server.output();
  const TimePoint begun = Clock::now();
  server.signal(SIGKILL);
  for (auto& one : waiting) {
    const Error error = one.get();
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(port)));
    EXPECT_THAT(error.what(), HasSubstr("get 'never'"));
  }
  EXPECT_LT(Clock::now() - begun, 10s);
  options.timeout = 200ms;  // a server that is not there may come yet
  EXPECT_EQ(error_of([&] { TcpStore client(options); }).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace farspan::dist

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"serve", farspan::dist::serve}});
}
