#include <farspan/c10d/group/dtype_info.h>

#include <array>

namespace farspan::dist {
namespace {

struct Info {
  std::string_view name;
  size_t bytes;
};

// In the order of schema::DType.
constexpr std::array kTypes = {
    Info{"uint8", 1},
    Info{"int8", 1},
    Info{"int16", 2},
    Info{"int32", 4},
    Info{"int64", 8},
    Info{"uint16", 2},
    Info{"uint32", 4},
    Info{"uint64", 8},
    Info{"float16", 2},
    Info{"bfloat16", 2},
    Info{"float32", 4},
    Info{"float64", 8},
    Info{"complex32", 4},
    Info{"complex64", 8},
    Info{"complex128", 16},
    Info{"bool", 1},
    Info{"float8_e5m2", 1},
    Info{"float8_e4m3fn", 1},
    Info{"float8_e5m2fnuz", 1},
    Info{"float8_e4m3fnuz", 1},
    Info{"float8_e8m0fnu", 1},
    Info{"float4_e2m1fn_x2", 1},
    Info{"bits8", 1},
    Info{"bits16", 2},
    Info{"bits1x8", 1},
    Info{"bits2x4", 1},
    Info{"bits4x2", 1},
    Info{"int1", 1},
    Info{"int2", 1},
    Info{"int3", 1},
    Info{"int4", 1},
    Info{"int5", 1},
    Info{"int6", 1},
    Info{"int7", 1},
    Info{"uint1", 1},
    Info{"uint2", 1},
    Info{"uint3", 1},
    Info{"uint4", 1},
    Info{"uint5", 1},
    Info{"uint6", 1},
    Info{"uint7", 1},
};
static_assert(kTypes.size() == static_cast<size_t>(DType::UINT7) + 1);
static_assert(kTypes[static_cast<size_t>(DType::FLOAT32)].name == "float32");
static_assert(kTypes[static_cast<size_t>(DType::BOOL)].name == "bool");
static_assert(kTypes[static_cast<size_t>(DType::BITS16)].bytes == 2);

const Info* find(DType type) noexcept {
  const auto index = static_cast<size_t>(type);
  return index < kTypes.size() ? &kTypes[index] : nullptr;
}

}  // namespace

std::string_view name_of(DType type) noexcept {
  const Info* info = find(type);
  return info ? info->name : "a type of a newer version";
}

size_t size_of(DType type) noexcept {
  const Info* info = find(type);
  return info ? info->bytes : 0;
}

}  // namespace farspan::dist
