// LibTorch exports the symbols of a libuv of its own; ours is another version. Both must work in
// one process, each with its own copy: ARCHITECTURE.md, "Two libuvs".
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <uv.h>

#include <cstdio>
#include <future>
#include <string>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <farspan/c10d/store/tcp_store.h>

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }

c10::intrusive_ptr<c10d::TCPStore> make_pytorchs(uint16_t port, bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = 20s;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TcpStoreOptions at(uint16_t port) {
  TcpStoreOptions options;
  options.port = port;
  return options;
}

TEST(TwoLibuvs, OursIsTheVersionOfItsHeadersAndLibTorchsIsAnother) {
  EXPECT_EQ(uv_version(), static_cast<unsigned>(UV_VERSION_HEX));
  // What LibTorch finds under this name (it exports no uv_version).
  void* theirs = dlsym(RTLD_DEFAULT, "uv_loop_init");
  ASSERT_TRUE(theirs) << "LibTorch exports no libuv any more: this test can go";
  EXPECT_NE(theirs, reinterpret_cast<void*>(&uv_loop_init));
  Dl_info info{};
  ASSERT_NE(dladdr(theirs, &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libtorch_cpu"), std::string::npos) << info.dli_fname;
}

TEST(TwoLibuvs, ServersOfBothRunInOneProcessAndServeClientsOfBoth) {
  const auto our_server = TcpStoreServer::start();
  const auto their_server = make_pytorchs(0, true);
  ASSERT_TRUE(their_server->isLibUvBackend());

  TcpStore ours_at_ours(at(our_server->port())), ours_at_theirs(at(their_server->getPort()));
  const auto theirs_at_ours = make_pytorchs(our_server->port(), false);
  const auto theirs_at_theirs = make_pytorchs(their_server->getPort(), false);

  for (int round = 0; round < 20; ++round) {
    const std::string key = "k" + std::to_string(round);
    // Each waits for what the other sets.
    auto theirs = std::async(std::launch::async, [&] { return text(theirs_at_ours->get(key)); });
    auto ours = std::async(std::launch::async, [&] { return ours_at_theirs.get(key); });
    ours_at_ours.set(key, std::string(100'000, 'o'));
    theirs_at_theirs->set(key, bytes(std::string(100'000, 't')));
    EXPECT_EQ(theirs.get(), std::string(100'000, 'o'));
    EXPECT_EQ(ours.get(), std::string(100'000, 't'));
    EXPECT_EQ(theirs_at_ours->add("n", 1), 2 * round + 1);
    EXPECT_EQ(ours_at_ours.add("n", 1), 2 * round + 2);
    EXPECT_EQ(ours_at_theirs.add("n", 1), 2 * round + 1);
    EXPECT_EQ(theirs_at_theirs->add("n", 1), 2 * round + 2);
  }
}

}  // namespace
}  // namespace farspan::dist
