// Our stores with PyTorch's own at the other end, in both roles, with every operation. Its meaning
// of each is what we keep, but for what c10d/store/README.md lists.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include <farspan/c10d/store/file_store.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/tcp_store.h>

#include "c10d/store/python_peer.h"
#include "c10d/store/reserved_port.h"
#include "c10d/store/temporary_folder.h"
#include "conformance/store_suite.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// One for all tests: importing PyTorch takes seconds.
PythonPeer& python() {
  static PythonPeer peer;
  return peer;
}

// A PyTorch server in the Python process, under a name there.
uint16_t serve(const std::string& name) {
  EXPECT_EQ(
      python().ask(name + " := dist.TCPStore('127.0.0.1', 0, None, True, seconds(20), False)"),
      "ok");
  return static_cast<uint16_t>(std::stoi(python().ask(name + ".port")));
}

dist::TcpStoreOptions at(uint16_t port) {
  dist::TcpStoreOptions options;
  options.port = port;
  return options;
}

constexpr const char* kNeedsPython = "there is no Python with PyTorch beside LibTorch";

OpenStore make_pytorch_server() {
  if (!PythonPeer::exists()) return {};
  const uint16_t port = serve("server");
  return [port] { return std::make_shared<dist::TcpStore>(at(port)); };
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreSuite,
                         ::testing::Values(StoreKind{"TcpOfPyTorch", make_pytorch_server,
                                                     kNeedsPython, true}),
                         name_of_kind);

class PyTorchStore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!PythonPeer::exists()) GTEST_SKIP() << kNeedsPython;
  }

  // PyTorch's client of our server, under the name "store" in the Python process.
  void connect_python(uint16_t port) {
    ASSERT_EQ(python().ask("store := dist.TCPStore('127.0.0.1', " + std::to_string(port) +
                           ", None, False, seconds(20), False)"),
              "ok");
  }
  static std::string ask(const std::string& expression) { return python().ask(expression); }
};

TEST_F(PyTorchStore, ItsClientUsesOurServerWithEveryOperation) {
  const auto server = dist::TcpStoreServer::start();
  connect_python(server->port());
  dist::TcpStore ours(at(server->port()));

  EXPECT_EQ(ask("store.set('k', 'v')"), "None");
  EXPECT_EQ(ask("store.get('k')"), "b'v'");
  EXPECT_EQ(ours.get("k"), "v");
  EXPECT_EQ(ask("store.add('n', 5)"), "5");
  EXPECT_EQ(ours.add("n", -7), -2);
  EXPECT_EQ(ask("store.add('n', 0)"), "-2");
  EXPECT_EQ(ask("store.compare_set('k', 'v', 'w')"), "b'w'");
  EXPECT_EQ(ask("store.compare_set('k', 'v', 'x')"), "b'w'");
  EXPECT_EQ(ask("store.compare_set('c', 'v', 'x')"), "b'v'");
  EXPECT_EQ(ask("store.compare_set('c', '', 'x')"), "b'x'");
  EXPECT_EQ(ask("store.check(['k', 'n'])"), "True");
  EXPECT_EQ(ask("store.check(['k', 'none'])"), "False");
  EXPECT_EQ(ask("store.wait(['k', 'n'])"), "None");
  EXPECT_EQ(ask("store.num_keys()"), "3");
  EXPECT_EQ(ask("store.delete_key('c')"), "True");
  EXPECT_EQ(ask("store.delete_key('c')"), "False");
  EXPECT_EQ(ask("store.append('k', '!')"), "None");
  EXPECT_EQ(ask("store.multi_set(['a', 'b'], ['1', '2'])"), "None");
  EXPECT_EQ(ask("store.multi_get(['b', 'k', 'a'])"), "[b'2', b'w!', b'1']");
  EXPECT_EQ(ask("sorted(store.list_keys())"), "['a', 'b', 'k', 'n']");
  EXPECT_EQ(ask("store.queue_push('q', '1')"), "None");
  ours.queue_push("q", "2");
  EXPECT_EQ(ask("store.queue_len('q')"), "2");
  EXPECT_EQ(ask("store.queue_pop('q')"), "b'1'");
  EXPECT_EQ(ask("store.queue_pop('q', False)"), "b'2'");
  EXPECT_THAT(ask("store.queue_pop('q', False)"), HasSubstr("QueueEmptyError"));
  EXPECT_EQ(ask("dist.PrefixStore('p', store).set('x', 'y')"), "None");
  EXPECT_EQ(dist::PrefixStore("p", ours.clone()).get("x"), "y");
  EXPECT_EQ(ask("store.clone().get('k')"), "b'w!'");
}

TEST_F(PyTorchStore, ItsWaitsOnOurServerEndAndAreCancelledAndBlockNobody) {
  const auto server = dist::TcpStoreServer::start();
  connect_python(server->port());
  dist::TcpStore ours(at(server->port()));

  python().start("store.get('late')");
  while (server->waits() == 0) std::this_thread::yield();
  ours.set("late", "here");
  EXPECT_EQ(python().read_line(), "b'here'");

  python().start("store.queue_pop('q')");
  while (server->waits() == 0) std::this_thread::yield();
  ours.queue_push("q", "x");
  EXPECT_EQ(python().read_line(), "b'x'");

  EXPECT_THAT(ask("store.wait(['never'], seconds(0.1))"), HasSubstr("wait timeout"));
  EXPECT_EQ(server->waits(), 0u);
  EXPECT_EQ(ask("store.check(['late'])"), "True");
}

TEST_F(PyTorchStore, AHostOfOursWaitsForAWorkerOfPyTorchs) {
  const ReservedPort port;
  const std::string number = std::to_string(port.number());
  python().start("store := dist.TCPStore('127.0.0.1', " + number +
                 ", 2, False, seconds(20), True)");
  dist::TcpStoreOptions host = at(port.number());
  host.is_server = true;
  host.world_size = 2;
  dist::TcpStore ours(host);
  EXPECT_EQ(python().read_line(), "ok");
  ours.set("k", "v");
  EXPECT_EQ(ask("store.get('k')"), "b'v'");
  EXPECT_EQ(ask("store := None"), "ok");
}

TEST_F(PyTorchStore, AHostOfPyTorchsWaitsForAWorkerOfOurs) {
  const ReservedPort port;
  const std::string number = std::to_string(port.number());
  python().start("store := dist.TCPStore('127.0.0.1', " + number + ", 2, True, seconds(20), True)");
  dist::TcpStoreOptions worker = at(port.number());
  worker.world_size = 2;
  dist::TcpStore ours(worker);
  EXPECT_EQ(python().read_line(), "ok");
  ours.set("k", "v");
  EXPECT_EQ(ask("store.get('k')"), "b'v'");
  EXPECT_EQ(ask("store := None"), "ok");
}

TEST_F(PyTorchStore, ItsServerSeesWhatOurClientWrites) {
  dist::TcpStore ours(at(serve("server")));
  ours.set("k", std::string("a\0b", 3));
  ours.multi_set({"x", "y"}, {"1", "2"});
  ours.append("x", "0");
  ours.queue_push("q", "1");
  EXPECT_EQ(ask("server.get('k')"), "b'a\\x00b'");
  EXPECT_EQ(ask("server.add('x', 1)"), "11");
  EXPECT_EQ(ask("server.queue_pop('q')"), "b'1'");
  EXPECT_EQ(ask("sorted(server.list_keys())"), "['k', 'x', 'y']");
  EXPECT_EQ(ask("server := None"), "ok");
  EXPECT_THROW(ours.get("k"), Error);  // its server has ended
}

TEST_F(PyTorchStore, OurFileStoreSharesAFileWithPyTorchs) {
  const TemporaryFolder folder;
  const std::string path = folder.file("shared");
  {
    dist::FileStore ours(path, 2);
    ASSERT_EQ(ask("store := dist.FileStore('" + path + "', 2)"), "ok");
    ours.set("k", "v");
    EXPECT_EQ(ask("store.get('k')"), "b'v'");
    EXPECT_EQ(ask("store.set('k', 'w')"), "None");
    EXPECT_EQ(ours.get("k"), "w");
    EXPECT_EQ(ask("store.add('n', 5)"), "5");
    EXPECT_EQ(ours.add("n", -7), -2);
    EXPECT_EQ(ask("store.compare_set('k', 'w', 'x')"), "b'x'");
    EXPECT_EQ(ours.compare_set("k", "x", "y"), "y");
    EXPECT_EQ(ask("store.check(['k', 'n'])"), "True");
    EXPECT_EQ(ask("store.delete_key('k')"), "True");
    EXPECT_FALSE(ours.check({"k"}));
    EXPECT_TRUE(ours.delete_key("n"));
    EXPECT_EQ(ask("store.check(['n'])"), "False");
    ours.append("log", "a");
    ours.append("log", "b");
    EXPECT_EQ(ask("store.get('log')"), "b'ab'");
    EXPECT_THAT(ours.list_keys(), UnorderedElementsAre("log"));
    python().start("store.get('late')");
    ours.set("late", "here");
    EXPECT_EQ(python().read_line(), "b'here'");
    EXPECT_EQ(ask("store := None"), "ok");
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));  // ours was the last

  ASSERT_EQ(ask("store := dist.FileStore('" + path + "', 2)"), "ok");
  { dist::FileStore ours(path, 2); }
  EXPECT_EQ(ask("store := None"), "ok");
  EXPECT_FALSE(std::filesystem::exists(path));  // PyTorch's was
}

}  // namespace
}  // namespace farspan::testing
