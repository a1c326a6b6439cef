// The client of the TCP store: connecting, failing, and what it says then.
#include <farspan/c10d/store/tcp_store.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/address_towards.h>
#include <farspan/c10d/store/hash_store.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/tcp_connection.h>
#include <farspan/c10d/store/tcp_wire.h>

#include "c10d/store/reserved_port.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::ReservedPort;
using namespace std::chrono_literals;

TcpStoreOptions at(uint16_t port, Millis timeout = 30s) {
  TcpStoreOptions options;
  options.port = port;
  options.timeout = timeout;
  return options;
}

// Does one connection's part of a conversation, in a thread.
class Impostor {
 public:
  using Talk = std::function<void(int fd)>;
  explicit Impostor(Talk talk) : listening_(net::listen_on({"127.0.0.1", 0}, Deadline::after(5s))) {
    thread_ = std::thread([this, talk] {
      net::OwnedDescriptor fd;
      while (!fd) {
        fd = net::OwnedDescriptor(accept4(listening_[0].get(), nullptr, nullptr, SOCK_NONBLOCK));
        if (!fd) std::this_thread::sleep_for(1ms);
      }
      try {
        talk(fd.get());
      } catch (const Error&) {
        // The client has gone, as it should when it meets one like this.
      }
    });
  }
  ~Impostor() { thread_.join(); }
  net::HostPort where() const {
    return {"127.0.0.1", net::SocketAddress::local_of(listening_[0].get()).port()};
  }

 private:
  std::vector<net::OwnedDescriptor> listening_;
  std::thread thread_;
};

std::string receive(int fd, size_t size) {
  std::string bytes;
  while (bytes.size() < size) {
    char part[64];
    bytes.append(part, net::receive_some(fd, part, std::min(sizeof part, size - bytes.size()),
                                         Deadline::after(20s)));
  }
  return bytes;
}

void say(int fd, const std::string& bytes) {
  net::send_all(fd, bytes.data(), bytes.size(), Deadline::after(20s));
}

// VALIDATE and PING, and the answer.
void welcome(int fd) { say(fd, receive(fd, 10).substr(6)); }

TEST(TcpStore, KeepsTryingUntilTheServerComes) {
  const ReservedPort reserved;
  const uint16_t port = reserved.number();
  auto joining =
      std::async(std::launch::async, [&] { return std::make_shared<TcpStore>(at(port)); });
  std::this_thread::sleep_for(50ms);
  const auto server = TcpStoreServer::start({.port = port});
  joining.get()->set("k", "v");
}

TEST(TcpStore, AServerThatNeverComesIsAnErrorWithAddressTimeAndAdvice) {
  const ReservedPort reserved;
  const uint16_t port = reserved.number();
  const Error error = error_of([&] { TcpStore store(at(port, 100ms)); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_GE(error.elapsed(), 100ms);
  EXPECT_LT(error.elapsed(), 10s);
  EXPECT_THAT(error.what(), HasSubstr("tcp://127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error.what(), HasSubstr("Connection refused"));
  EXPECT_THAT(error.advice(), HasSubstr("rank 0"));
}

TEST(TcpStore, AHostThatDoesNotExistIsNamed) {
  TcpStoreOptions options = at(1, 50ms);
  options.host = "no-such-host.invalid";
  EXPECT_THAT(error_of([&] { TcpStore store(options); }).what(), HasSubstr("no-such-host.invalid"));
}

TEST(TcpStore, SomethingElseAtThePortIsAnErrorAtOnce) {
  Impostor impostor([](int fd) {
    receive(fd, 10);
    say(fd, "SSH-2.0-OpenSSH\r\n");
  });
  const Error error = error_of([&] { TcpStore store(at(impostor.where().port)); });
  EXPECT_EQ(error.code(), Code::kCorrupt);
  EXPECT_LT(error.elapsed(), 10s);
}

TEST(TcpStore, ALengthThatNoAnswerHasIsAnErrorNotAnAllocation) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, 1);
    say(fd, std::string(8, '\xff'));
    receive(fd, SIZE_MAX);
  });
  TcpStore store(at(impostor.where().port));
  EXPECT_EQ(error_of([&] { store.get("k"); }).code(), Code::kCorrupt);
}

TEST(TcpStore, AServerThatIsStuckIsATimeoutForEveryOperation) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, SIZE_MAX);  // until the client goes
  });
  {
    TcpStore store(at(impostor.where().port, 100ms));
    const Error error = error_of([&] { store.set("k", "v"); });
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_GE(error.elapsed(), 100ms);
    EXPECT_THAT(error.advice(), HasSubstr("stuck"));
  }
}

TEST(TcpStore, ReachesANewServerAtTheSamePlace) {
  const ReservedPort reserved;
  auto server = TcpStoreServer::start({.port = reserved.number()});
  TcpStore store(at(reserved.number()));
  store.set("k", "old");
  server.reset();
  EXPECT_EQ(error_of([&] { store.get("k"); }).code(), Code::kUnavailable);
  server = TcpStoreServer::start({.port = reserved.number()});
  EXPECT_FALSE(store.check({"k"}));
  store.set("k", "new");
  EXPECT_EQ(store.get("k"), "new");
}

TEST(TcpStore, TheHostsStoreCarriesTheServer) {
  TcpStoreOptions options;
  options.is_server = true;
  auto host = std::make_shared<TcpStore>(options);
  ASSERT_TRUE(host->server());
  EXPECT_NE(host->where().port, 0);
  TcpStore other(at(host->where().port));
  EXPECT_FALSE(other.server());
  auto clone = host->clone();
  host.reset();
  other.set("k", "v");
  EXPECT_EQ(clone->get("k"), "v");
  clone.reset();
  EXPECT_THROW(other.get("k"), Error);
}

TEST(TcpStore, TheHostWaitsForAllWorkersAndSaysHowManyCame) {
  TcpStoreOptions options;
  options.is_server = true;
  options.world_size = 3;
  options.timeout = 100ms;
  const auto start = [&] { return error_of([&] { TcpStore store(options); }); };
  Error error = start();
  const Deadline limit = Deadline::after(60s);  // of tries without the time to reach its own server
  while (error.code() == Code::kUnavailable && !limit.expired()) error = start();
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.message(), "1 of 3 workers have come");

  options.timeout = 30s;
  const ReservedPort reserved;
  options.port = reserved.number();
  TcpStoreOptions worker = options;
  worker.is_server = false;
  auto host = std::async(std::launch::async, [&] { return std::make_shared<TcpStore>(options); });
  TcpStore one(worker), two(worker);
  EXPECT_EQ(host.get()->num_keys(), 0);  // the count is no key of the users'
}

TEST(TcpStore, AnAnswerThatCrossesTheCancellationCounts) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, 1 + 8 + 8 + 2);                         // WAIT for "/k"
    EXPECT_EQ(receive(fd, 1), std::string(1, '\x0c'));  // CANCEL_WAIT
    say(fd, std::string("\x00\x01", 2));                // the key came; and the wait is cancelled
    say(fd, receive(fd, 5).substr(1));                  // PING: the connection is good
  });
  TcpConnection connection(impostor.where(), Deadline::after(5s));
  EXPECT_TRUE(connection.wait({"/k"}, Deadline::after(10ms)));
  connection.ping(Deadline::after(5s));
}

// A pop with a deadline of the test's own, which may be over.
struct Pops : Store {
  static constexpr auto pop = &Pops::do_queue_pop;
  static constexpr auto try_pop = &Pops::do_queue_try_pop;
};
constexpr size_t kPopBytes = 1 + 8 + 2;  // of QUEUE_POP for "/q"
const std::string kPopped("\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0v", 17);

TEST(TcpStore, AValueThatIsOutOfTheQueueAtTheDeadlineIsAwaited) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, kPopBytes);
    std::this_thread::sleep_for(120ms);  // the time is over
    say(fd, kPopped);
  });
  TcpStore store(at(impostor.where().port));
  store.set_timeout(100ms);
  EXPECT_EQ(store.queue_try_pop("q"), "v");
}

TEST(TcpStore, APopThatIsWokenAtItsDeadlineTakesTheValue) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, kPopBytes);
    say(fd, std::string(8, '\0'));  // empty
    receive(fd, 1 + 8 + 8 + 2);     // WAIT for "/q"
    receive(fd, 1);                 // CANCEL_WAIT: the time is over
    say(fd, std::string("\x00\x01", 2));
    receive(fd, kPopBytes);
    std::this_thread::sleep_for(20ms);  // not in the moment in which it asks
    say(fd, kPopped);
  });
  TcpStore store(at(impostor.where().port));
  EXPECT_EQ(store.queue_pop("q", 100ms), "v");
}

TEST(TcpStore, APopWhoseTimeIsOverAsksForNothing) {
  const auto server = TcpStoreServer::start();
  TcpStore store(at(server->port()));
  store.queue_push("q", "v");
  const Deadline over = Deadline::after(0ms);
  EXPECT_EQ(error_of([&] { (store.*Pops::pop)("q", over); }).code(), Code::kTimeout);
  EXPECT_EQ(error_of([&] { (store.*Pops::try_pop)("q", over); }).code(), Code::kTimeout);
  EXPECT_EQ(store.queue_len("q"), 1);
}

TEST(TcpStore, APopThatIsNotAnsweredEndsAfterItsGraceAndSaysWhatMayBeLost) {
  Impostor impostor([](int fd) {
    welcome(fd);
    receive(fd, SIZE_MAX);  // until the client goes
  });
  TcpConnection connection(impostor.where(), Deadline::after(5s));
  const TimePoint begun = Clock::now();
  const Error error =
      error_of([&] { connection.pop("/q", Deadline::after(0ms), {.pop_grace = 50ms}); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.message(), HasSubstr("is lost"));
  EXPECT_GE(Clock::now() - begun, 50ms);
  EXPECT_LT(Clock::now() - begun, 4s);
}

TEST(TcpStore, AWaitThatTimesOutLeavesNoWaitAtTheServer) {
  const auto server = TcpStoreServer::start();
  TcpStore store(at(server->port()));
  for (int i = 0; i < 10; ++i) EXPECT_THROW(store.wait({"never"}, 5ms), Error);
  EXPECT_EQ(server->waits(), 0u);
  EXPECT_EQ(server->connections(), 1u);
}

TEST(TcpStore, TakesAHostNameAndIPv6) {
  for (const char* host : {"localhost", "::1"}) {
    std::shared_ptr<TcpStoreServer> server;
    try {
      server = TcpStoreServer::start({.host = host});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), Code::kUnavailable);
      GTEST_SKIP() << "no IPv6 here";
    }
    TcpStoreOptions options = at(server->port());
    options.host = host;
    TcpStore store(options);
    store.set("k", host);
    EXPECT_EQ(store.get("k"), host);
  }
}

TEST(AddressTowards, IsThatOfThisHostOnTheWayToTheStoresServer) {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    std::shared_ptr<TcpStoreServer> server;
    try {
      server = TcpStoreServer::start({.host = host});
    } catch (const Error& error) {
      GTEST_SKIP() << "no IPv6 here";
    }
    TcpStoreOptions options = at(server->port());
    options.host = host;
    const auto store = std::make_shared<TcpStore>(options);
    EXPECT_EQ(address_towards(*store), host);
    EXPECT_EQ(address_towards(PrefixStore("job", store)), host);
  }
  EXPECT_EQ(address_towards(HashStore()), std::nullopt);
}

}  // namespace
}  // namespace farspan::dist
