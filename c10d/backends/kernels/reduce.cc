#include <farspan/c10d/backends/kernels/reduce.h>

#include <farspan/c10d/backends/kernels/table.h>
#include <farspan/c10d/base/error.h>

namespace farspan::dist::kernels {
namespace {

const Table& table() noexcept {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return kAvx2;
#endif
  return kBaseline;
}

bool is_complex(DType type) noexcept {
  return type >= DType::COMPLEX32 && type <= DType::COMPLEX128;
}

}  // namespace

void reduce(DType type, ReduceOp::Kind op, std::byte* out, std::span<const std::byte* const> in,
            size_t count, int divisor) {
  FARSPAN_ASSERT(why_not(op, type).empty(), "the group refuses what has no meaning");
  const Loop loop = table().rows[static_cast<size_t>(type)][op];
  const bool by_parts = is_complex(type) && op != ReduceOp::kProduct;
  loop(out, reinterpret_cast<const void* const*>(in.data()), static_cast<int>(in.size()),
       by_parts ? 2 * count : count, divisor);
}

}  // namespace farspan::dist::kernels
