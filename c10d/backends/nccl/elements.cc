#include <farspan/c10d/backends/nccl/elements.h>

namespace farspan::dist::nccl {
namespace {

bool is_integer(DType type) noexcept {
  switch (type) {
    case DType::INT8:
    case DType::UINT8:
    case DType::INT32:
    case DType::UINT32:
    case DType::INT64:
    case DType::UINT64:
      return true;
    default:
      return false;
  }
}

bool is_floating(DType type) noexcept {
  switch (type) {
    case DType::FLOAT16:
    case DType::BFLOAT16:
    case DType::FLOAT32:
    case DType::FLOAT64:
      return true;
    default:
      return false;
  }
}

std::optional<AsNccl> of_bools(ReduceOp::Kind op) noexcept {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
      return AsNccl{DType::UINT8, 1, ReduceOp::kMax};
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
      return AsNccl{DType::UINT8, 1, ReduceOp::kMin};
    default:
      return std::nullopt;
  }
}

std::optional<AsNccl> of_numbers(ReduceOp::Kind op, DType type) noexcept {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (!is_integer(type) && !is_floating(type)) return std::nullopt;
      return AsNccl{type, 1, op};
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      if (!is_floating(type)) return std::nullopt;
      return AsNccl{type, 1, op == ReduceOp::kAvg ? ReduceOp::kAvg : ReduceOp::kSum};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<AsNccl> as_nccl(ReduceOp::Kind op, DType type) noexcept {
  if (type == DType::BOOL) return of_bools(op);
  const bool is_complex = type == DType::COMPLEX64 || type == DType::COMPLEX128;
  if (!is_complex) return of_numbers(op, type);
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg && op != ReduceOp::kPremulSum) {
    return std::nullopt;
  }
  auto parts = of_numbers(op, type == DType::COMPLEX64 ? DType::FLOAT32 : DType::FLOAT64);
  parts->factor = 2;
  return parts;
}

}  // namespace farspan::dist::nccl
