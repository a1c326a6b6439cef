// What a worker's process listens on: README.md, "Limitations".
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>

#include <farspan/c10d/net/address.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include "rpc/init/launch.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using net::SocketAddress;
using ::testing::Contains;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Property;

// Of this process: the TCP sockets among its descriptors that accept connections.
std::vector<SocketAddress> listening() {
  std::vector<SocketAddress> addresses;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int accepts = 0;
    socklen_t size = sizeof accepts;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0 || accepts == 0) continue;
    const SocketAddress address = SocketAddress::local_of(fd);
    if (address.family() != AF_UNIX) addresses.push_back(address);
  }
  return addresses;
}

std::string host_of(const SocketAddress& address) {
  const std::string text = address.to_string();
  return text.substr(0, text.rfind(':'));
}
std::vector<std::string> listening_hosts() {
  std::vector<std::string> hosts;
  for (const SocketAddress& address : listening()) hosts.push_back(host_of(address));
  return hosts;
}

// An address by which other hosts may reach this one; empty when it has none.
std::string outward_address() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string found;
  for (const ifaddrs* one = all; one; one = one->ifa_next) {
    if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
    const SocketAddress address(one->ifa_addr, sizeof(sockaddr_in));
    if (!address.is_loopback()) found = host_of(address);
  }
  freeifaddrs(all);
  return found;
}

// Joins as the only worker, which hosts the store.
std::vector<std::string> hosts_of_a_worker_at(const std::string& master_addr) {
  const LaunchVariables set(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", master_addr}, {"MASTER_PORT", "0"}});
  init_rpc("w");
  const auto hosts = listening_hosts();
  shutdown();
  return hosts;
}

TEST(Listening, OnLoopbackOnlyWhileAllWorkersShareAHost) {
  Launch launch;
  Process& other = launch.start("join", 1, 2);
  const LaunchVariables set(launch.variables(0, 2));
  init_rpc("w0");
  const auto addresses = listening();
  shutdown();
  EXPECT_EQ(other.wait(30s).status, 0);
  EXPECT_THAT(addresses, Not(IsEmpty()));
  EXPECT_THAT(addresses, Each(Property(&SocketAddress::is_loopback, true)));
}

TEST(Listening, TheStoreIsWhereMasterAddrSaysAndNowhereElse) {
  EXPECT_THAT(hosts_of_a_worker_at("127.0.0.1"), Each("127.0.0.1"));
  EXPECT_THAT(hosts_of_a_worker_at("127.0.0.2"),
              ::testing::UnorderedElementsAre("127.0.0.1", "127.0.0.2"));
  for (const std::string& host : hosts_of_a_worker_at("localhost")) {
    EXPECT_THAT((std::vector<std::string>{"127.0.0.1", "[::1]"}), Contains(host));
  }
}

TEST(Listening, AMasterAddrOfTheNetworkOpensTheStoreToIt) {
  const std::string outward = outward_address();
  if (outward.empty()) GTEST_SKIP() << "this host has loopback only";
  EXPECT_THAT(hosts_of_a_worker_at(outward), ::testing::UnorderedElementsAre("127.0.0.1", outward));
}

TEST(Listening, EndsWithTheWorker) {
  EXPECT_THAT(hosts_of_a_worker_at("127.0.0.1"), Not(IsEmpty()));
  EXPECT_THAT(listening(), IsEmpty());
}

}  // namespace
}  // namespace farspan::testing
