#include "conformance/expected.h"

#include <algorithm>

namespace farspan::testing {

using at::Tensor;
using dist::ReduceOp;

namespace {

// In a type that LibTorch reduces, and that is exact for what input_of() makes.
Tensor wide(const Tensor& tensor) {
  if (tensor.is_complex()) return tensor.to(at::kComplexDouble);
  return c10::isIntegralType(tensor.scalar_type(), true) ? tensor.to(at::kLong)
                                                         : tensor.to(at::kDouble);
}

}  // namespace

Tensor expected(ReduceOp::Kind op, const std::vector<Tensor>& all) {
  const auto type = all.front().scalar_type();
  std::vector<Tensor> wides;
  for (const Tensor& one : all) {
    const double factor = factor_of(static_cast<int>(wides.size()));
    wides.push_back(op == ReduceOp::kPremulSum ? wide(one) * factor : wide(one));
  }
  Tensor result = wides.front().clone();
  for (size_t rank = 1; rank < wides.size(); ++rank) {
    const Tensor& next = wides[rank];
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kPremulSum:
        result = result + next;
        break;
      case ReduceOp::kProduct:
        result = result * next;
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kBand:
        result = at::bitwise_and(result, next);
        break;
      case ReduceOp::kBor:
        result = at::bitwise_or(result, next);
        break;
      case ReduceOp::kBxor:
        result = at::bitwise_xor(result, next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) {  // part by part: LibTorch divides complex numbers by complex ones
    const auto ranks = static_cast<double>(all.size());
    result = result.is_complex() ? at::view_as_complex(at::view_as_real(result) / ranks)
                                 : result / ranks;
  }
  return type == at::kBool ? result != 0 : result.to(type);
}

Tensor reduced(ReduceOp::Kind op, int ranks, int64_t count, at::ScalarType type, int64_t salt) {
  const int64_t first = std::min(count, kRepeated);
  return repeated(expected(op, inputs(ranks, first, type, salt)), count);
}

std::string about(ReduceOp::Kind op, at::ScalarType type, int64_t count, int ranks) {
  return std::string(dist::name_of(op)) + " of " + std::to_string(count) + " " +
         c10::toString(type) + " over " + std::to_string(ranks) + " ranks";
}

}  // namespace farspan::testing
