// The TCP store's server over real sockets on loopback, every port an ephemeral one.
#include <farspan/c10d/store/tcp_store_server.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/tcp_store.h>
#include <farspan/c10d/store/tcp_wire.h>

#include "c10d/store/reserved_port.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/process_counts.h"
#include "support/process_use.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::error_of;
using testing::eventually;

std::shared_ptr<TcpStore> join(const TcpStoreServer& server, Millis timeout = 30s) {
  TcpStoreOptions options;
  options.host = server.where().host;
  options.port = server.port();
  options.timeout = timeout;
  return std::make_shared<TcpStore>(options);
}

// What is sent before the other side closes; empty at once when it has closed.
std::string read_to_end(int fd) {
  std::string all;
  char bytes[4096];
  try {
    while (true) {
      all.append(bytes, net::receive_some(fd, bytes, sizeof bytes, Deadline::after(20s)));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDisconnected);
  }
  return all;
}

int threads_of_this_process() { return testing::ProcessCounts::now().threads; }

TEST(TcpStoreServer, ServesSixtyFourClientsWithOneThread) {
  std::thread([] {}).join();  // a sanitizer starts its own thread with the first
  const auto before = threads_of_this_process();
  const auto server = TcpStoreServer::start();
  EXPECT_EQ(threads_of_this_process(), before + 1);
  std::vector<std::shared_ptr<TcpStore>> clients;
  for (int i = 0; i < 64; ++i) clients.push_back(join(*server));
  EXPECT_EQ(threads_of_this_process(), before + 1);
  EXPECT_EQ(server->connections(), 64u);

  // All of them wait at once, and the last one's key sets them free.
  std::vector<std::future<std::string>> waiting;
  for (int i = 0; i < 64; ++i) {
    waiting.push_back(std::async(std::launch::async, [&, i] {
      clients[i]->add("here", 1);
      return clients[i]->get("go");
    }));
  }
  ASSERT_TRUE(eventually([&] { return server->waits() == 64; }, 20s));
  clients[0]->set("go", "now");
  for (auto& one : waiting) EXPECT_EQ(one.get(), "now");
  EXPECT_EQ(clients[0]->get("here"), "64");
}

TEST(TcpStoreServer, ClosingItFailsWaitingClientsAtOnceAndNamesItsAddress) {
  const auto server = TcpStoreServer::start();
  const auto client = join(*server, 60s);
  const auto start = Clock::now();
  auto waiting =
      std::async(std::launch::async, [&] { return error_of([&] { client->get("never"); }); });
  ASSERT_TRUE(eventually([&] { return server->waits() == 1; }, 20s));
  server->close();
  const Error error = waiting.get();
  EXPECT_LT(Clock::now() - start, 10s);
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(server->port())));
  EXPECT_THAT(error.what(), HasSubstr("get 'never'"));
  // And whatever is asked next.
  const Error next = error_of([&] { client->set("k", "v"); });
  EXPECT_EQ(next.code(), Code::kUnavailable);
  EXPECT_THAT(next.what(), HasSubstr("127.0.0.1:" + std::to_string(server->port())));
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(TcpStoreServer, ClosesTwiceAndWithoutClients) {
  const auto server = TcpStoreServer::start();
  server->close();
  server->close();
  EXPECT_THROW(net::dial(server->where(), Deadline::after(5s)), Error);
}

TEST(TcpStoreServer, BindsTheGivenAddressOnly) {
  const auto server = TcpStoreServer::start();
  EXPECT_NE(server->port(), 0);
  // Every socket that listens on this port, as the kernel knows them: address:port in hexadecimal.
  char port[8];
  std::snprintf(port, sizeof port, ":%04X", server->port());
  std::vector<std::string> found;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string slot, local, remote, state, rest;
    while (lines >> slot >> local >> remote >> state && std::getline(lines, rest)) {
      if (state == "0A" && local.ends_with(port)) found.push_back(local);
    }
  }
  EXPECT_THAT(found, ::testing::ElementsAre(std::string("0100007F") + port));
}

TEST(TcpStoreServer, WarnsWhenItIsToldToListenEverywhere) {
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view, std::string_view line) { lines += line; });
  const auto server = TcpStoreServer::start({.host = "0.0.0.0"});
  set_log_sink({});
  EXPECT_THAT(lines, HasSubstr("every address"));
  join(*server)->set("k", "v");
}

TEST(TcpStoreServer, APortInUseIsAnErrorThatNamesIt) {
  const auto server = TcpStoreServer::start();
  const Error error = error_of([&] { TcpStoreServer::start({.port = server->port()}); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(server->port())));
}

TEST(TcpStoreServer, AnAddressOfAnotherHostIsAnErrorThatNamesIt) {
  const Error error = error_of([] { TcpStoreServer::start({.host = "192.0.2.1"}); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("192.0.2.1"));
}

TEST(TcpStoreServer, IsSharedByAllOfAProcessThatHostOnePort) {
  const testing::ReservedPort reserved;
  const auto first = TcpStoreServer::shared({.port = reserved.number()});
  EXPECT_EQ(TcpStoreServer::shared({.port = reserved.number()}), first);
  first->close();
  EXPECT_NE(TcpStoreServer::shared({.port = reserved.number()}), first);
}

TEST(TcpStoreServer, StrangersAreNotAnsweredAndAreClosedWhenTheirTimeIsOver) {
  const auto server = TcpStoreServer::start({.handshake_timeout = 50ms});
  const auto good = join(*server);
  std::vector<net::OwnedDescriptor> strangers;
  for (const std::string bytes : {"", "GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01"}) {
    strangers.push_back(net::dial(server->where(), Deadline::after(5s)));
    net::send_all(strangers.back().get(), bytes.data(), bytes.size(), Deadline::after(5s));
  }
  for (const auto& stranger : strangers) EXPECT_EQ(read_to_end(stranger.get()), "");
  EXPECT_TRUE(eventually([&] { return server->connections() == 1; }, 20s));
  good->set("k", "v");
}

TEST(TcpStoreServer, RandomBytesNeverCrashOrHangIt) {
  const auto server = TcpStoreServer::start({.handshake_timeout = 200ms});
  const auto good = join(*server);
  std::mt19937 random(7);
  std::vector<net::OwnedDescriptor> senders;
  for (int i = 0; i < 200; ++i) {
    std::string bytes;
    if (i % 4) {
      put_code(bytes, TcpCode::kValidate);
      put_u32(bytes, kTcpMagic);
    }
    for (int j = 0; j < 200; ++j) bytes += static_cast<char>(random() % (i % 2 ? 20 : 256));
    senders.push_back(net::dial(server->where(), Deadline::after(5s)));
    try {
      net::send_all(senders.back().get(), bytes.data(), bytes.size(), Deadline::after(5s));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDisconnected);  // it may know by the first part
    }
    good->set("k", std::to_string(i));
    ASSERT_EQ(good->get("k"), std::to_string(i));
  }
  senders.clear();
  EXPECT_TRUE(eventually([&] { return server->connections() == 1; }, 20s));
}

TEST(TcpStoreServer, ASlowReaderHoldsUpNobodyAndDoesNotGrowTheServer) {
  const auto server = TcpStoreServer::start();
  const auto good = join(*server);
  good->set("big", std::string(dist::kMaxStoreValueBytes, 'v'));
  const auto slow = net::dial(server->where(), Deadline::after(5s));
  std::string request;
  put_code(request, TcpCode::kValidate);
  put_u32(request, kTcpMagic);
  // 8 GiB of answers, were they all made.
  for (int i = 0; i < 1000; ++i) {
    put_code(request, TcpCode::kGet);
    put_text(request, "/big");
  }
  net::send_all(slow.get(), request.data(), request.size(), Deadline::after(5s));
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  const auto before = peak();
  for (int i = 0; i < 200; ++i) good->add("n", 1);
  EXPECT_EQ(good->get("n"), "200");
  EXPECT_LT(peak() - before, 200 * 1024);
}

TEST(TcpStoreServer, AClientThatGoesAwayInTheMiddleOfAnAnswerHarmsNobody) {
  const auto server = TcpStoreServer::start();
  const auto good = join(*server);
  good->set("big", std::string(dist::kMaxStoreValueBytes, 'v'));
  std::string request;
  put_code(request, TcpCode::kValidate);
  put_u32(request, kTcpMagic);
  for (int i = 0; i < 3; ++i) {
    put_code(request, TcpCode::kGet);
    put_text(request, "/big");
  }
  for (int i = 0; i < 20; ++i) {
    const auto client = net::dial(server->where(), Deadline::after(5s));
    net::send_all(client.get(), request.data(), request.size(), Deadline::after(5s));
    char byte;
    net::receive_some(client.get(), &byte, 1, Deadline::after(20s));
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  good->set("k", "v");
  EXPECT_TRUE(eventually([&] { return server->connections() == 1; }, 20s));
}

TEST(TcpStoreServer, OutOfDescriptorsItWaitsWithoutSpinningAndRecovers) {
  const auto server = TcpStoreServer::start();
  const auto good = join(*server);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view, std::string_view line) { lines += line; });

  // One more socket here; none is left for the server's end of it. (A socket takes the lowest free
  // number, so the limit is just above it.)
  net::OwnedDescriptor last(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(last.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto address = net::resolve(server->where(), Deadline::after(5s)).front();
  ASSERT_EQ(connect(last.get(), address.get(), address.size()), 0);
  std::string ping;
  put_code(ping, TcpCode::kValidate);
  put_u32(ping, kTcpMagic);
  put_code(ping, TcpCode::kPing);
  put_u32(ping, 5);
  net::send_all(last.get(), ping.data(), ping.size(), Deadline::after(5s));

  const Clock::duration before = farspan::testing::processor_time();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(farspan::testing::processor_time() - before, 100ms) << "of CPU in half a second";
  good->set("k", "v");  // those who are in are served
  EXPECT_EQ(server->connections(), 1u);

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  char answer[4];
  EXPECT_EQ(net::receive_some(last.get(), answer, sizeof answer, Deadline::after(5s)), 4u);
  set_log_sink({});
  EXPECT_THAT(lines, HasSubstr("ulimit -n"));
}

}  // namespace
}  // namespace farspan::dist
