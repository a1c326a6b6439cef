#include <farspan/autograd/boundary.h>

#include <farspan/c10d/base/error.h>

namespace farspan::dist_autograd {

Boundary::~Boundary() = default;

torch::autograd::variable_list Boundary::apply(torch::autograd::variable_list&&) {
  throw Error(Code::kInvalidArgument, "the graph of this tensor goes on at another worker")
      .operation("backward through " + name())
      .advice("call backward on the dist_autograd::Context, not on the tensor");
}

}  // namespace farspan::dist_autograd
