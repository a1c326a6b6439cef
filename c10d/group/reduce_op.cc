#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist {
namespace {

bool is_integer(DType type) noexcept { return type <= DType::UINT64; }
bool is_floating(DType type) noexcept { return type >= DType::FLOAT16 && type <= DType::FLOAT64; }
bool is_complex(DType type) noexcept {
  return type >= DType::COMPLEX32 && type <= DType::COMPLEX128;
}

bool has_meaning(ReduceOp::Kind op, DType type) noexcept {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return is_integer(type) || is_floating(type) || is_complex(type) || type == DType::BOOL;
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      return is_floating(type) || is_complex(type);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return is_integer(type) || is_floating(type) || type == DType::BOOL;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_integer(type) || type == DType::BOOL;
  }
  return false;
}

}  // namespace

std::string_view name_of(ReduceOp::Kind op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAvg:
      return "AVG";
    case ReduceOp::kProduct:
      return "PRODUCT";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kBand:
      return "BAND";
    case ReduceOp::kBor:
      return "BOR";
    case ReduceOp::kBxor:
      return "BXOR";
    case ReduceOp::kPremulSum:
      return "PREMUL_SUM";
  }
  return "an operation of a newer version";
}

std::string why_not(ReduceOp::Kind op, DType type) {
  if (has_meaning(op, type)) return "";
  return std::string(name_of(op)) + " of " + std::string(name_of(type)) + " has no meaning here";
}

}  // namespace farspan::dist
