// Every store that needs nothing but this machine, alone and under a prefix.
#include "conformance/store_suite.h"

#include <farspan/c10d/store/file_store.h>
#include <farspan/c10d/store/hash_store.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/tcp_store.h>

#include "c10d/store/temporary_folder.h"

namespace farspan::testing {
namespace {

OpenStore make_hash() {
  auto first = std::make_shared<dist::HashStore>();
  return [first] { return first->clone(); };
}

OpenStore make_file() {
  auto folder = std::make_shared<TemporaryFolder>();
  return [folder] { return std::make_shared<dist::FileStore>(folder->file("store")); };
}

OpenStore make_tcp() {
  auto server = dist::TcpStoreServer::start();
  return [server] {
    dist::TcpStoreOptions options;
    options.port = server->port();
    return std::make_shared<dist::TcpStore>(options);
  };
}

OpenStore with_prefix(const OpenStore& open) {
  // What else is in the store must not be seen.
  open()->set("stranger", "");
  return [open] { return std::make_shared<dist::PrefixStore>("a/b", open()); };
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreSuite,
    ::testing::Values(StoreKind{"Hash", make_hash}, StoreKind{"File", make_file},
                      StoreKind{"Tcp", make_tcp},
                      StoreKind{"PrefixOverHash", [] { return with_prefix(make_hash()); }},
                      StoreKind{"PrefixOverFile", [] { return with_prefix(make_file()); }},
                      StoreKind{"PrefixOverTcp", [] { return with_prefix(make_tcp()); }}),
    name_of_kind);

TEST(PrefixStore, PrefixesNestFromTheOutside) {
  const auto memory = std::make_shared<dist::HashStore>();
  const auto outer = std::make_shared<dist::PrefixStore>("outer", memory);
  dist::PrefixStore inner("inner", outer);
  inner.set("k", "v");
  EXPECT_EQ(memory->get("outer/inner/k"), "v");
  EXPECT_THAT(outer->list_keys(), ::testing::ElementsAre("inner/k"));
  EXPECT_THAT(inner.list_keys(), ::testing::ElementsAre("k"));
  EXPECT_EQ(inner.store(), outer);
  EXPECT_EQ(inner.prefix(), "inner");
  EXPECT_EQ(inner.address(), "memory under 'outer/' under 'inner/'");
}

}  // namespace
}  // namespace farspan::testing
