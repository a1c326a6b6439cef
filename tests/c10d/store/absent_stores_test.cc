// A farspan that was built without hiredis, libcurl and nlohmann-json: this program compiles
// c10d/store/server_rendezvous.cc so, and takes it instead of the library's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <farspan/c10d/store/rendezvous.h>

#include "support/errors.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;

TEST(AbsentStores, SayWhatIsMissingAndWhatToInstall) {
  const auto refused = [](const std::string& url) {
    return testing::error_of([&] { rendezvous(url + "://u:s3cret@h:1?rank=0&world_size=1"); });
  };
  const Error redis = refused("redis"), etcd = refused("etcd");
  for (const Error& error : {redis, etcd}) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("s3cret")));
  }
  EXPECT_THAT(redis.message(), HasSubstr("built without hiredis"));
  EXPECT_THAT(redis.advice(), HasSubstr("libhiredis-dev"));
  EXPECT_THAT(etcd.message(), HasSubstr("built without libcurl"));
  EXPECT_THAT(etcd.advice(), HasSubstr("libcurl4-openssl-dev"));
}

}  // namespace
}  // namespace farspan::dist
