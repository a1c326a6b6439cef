// A farspan that was built without MPI: this program takes c10d/backends/mpi/absent.cc instead of
// the library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <farspan/c10d/backends/mpi/mpi.h>

#include "support/errors.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;

TEST(AbsentMpi, SaysWhatIsMissingAndWhatToInstall) {
  for (const Error& error : {testing::error_of([] { mpi::meet(Deadline::never()); }),
                             testing::error_of([] { mpi::make_mpi_backend(BackendContext()); })}) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("built without MPI"));
    EXPECT_THAT(error.advice(), HasSubstr("libopenmpi-dev"));
  }
}

}  // namespace
}  // namespace farspan::dist
