#include <farspan/c10d/values/dtype.h>

#include <array>
#include <cstdint>

namespace farspan {
namespace {

using c10::ScalarType;

// In the order of schema::DType.
constexpr ScalarType kTypes[] = {
    ScalarType::Byte,
    ScalarType::Char,
    ScalarType::Short,
    ScalarType::Int,
    ScalarType::Long,
    ScalarType::UInt16,
    ScalarType::UInt32,
    ScalarType::UInt64,
    ScalarType::Half,
    ScalarType::BFloat16,
    ScalarType::Float,
    ScalarType::Double,
    ScalarType::ComplexHalf,
    ScalarType::ComplexFloat,
    ScalarType::ComplexDouble,
    ScalarType::Bool,
    ScalarType::Float8_e5m2,
    ScalarType::Float8_e4m3fn,
    ScalarType::Float8_e5m2fnuz,
    ScalarType::Float8_e4m3fnuz,
    ScalarType::Float8_e8m0fnu,
    ScalarType::Float4_e2m1fn_x2,
    ScalarType::Bits8,
    ScalarType::Bits16,
    ScalarType::Bits1x8,
    ScalarType::Bits2x4,
    ScalarType::Bits4x2,
    ScalarType::Int1,
    ScalarType::Int2,
    ScalarType::Int3,
    ScalarType::Int4,
    ScalarType::Int5,
    ScalarType::Int6,
    ScalarType::Int7,
    ScalarType::UInt1,
    ScalarType::UInt2,
    ScalarType::UInt3,
    ScalarType::UInt4,
    ScalarType::UInt5,
    ScalarType::UInt6,
    ScalarType::UInt7,
};
static_assert(std::size(kTypes) == static_cast<size_t>(schema::DType::UINT7) + 1);
static_assert(kTypes[static_cast<size_t>(schema::DType::FLOAT32)] == ScalarType::Float);
static_assert(kTypes[static_cast<size_t>(schema::DType::BOOL)] == ScalarType::Bool);
static_assert(kTypes[static_cast<size_t>(schema::DType::INT1)] == ScalarType::Int1);

constexpr uint8_t kNone = 255;
constexpr auto kNumbers = [] {
  std::array<uint8_t, static_cast<size_t>(ScalarType::NumOptions)> numbers{};
  numbers.fill(kNone);
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    numbers[static_cast<size_t>(kTypes[i])] = static_cast<uint8_t>(i);
  }
  return numbers;
}();

}  // namespace

std::optional<schema::DType> dtype_to_wire(ScalarType type) noexcept {
  const auto index = static_cast<size_t>(type);
  if (index >= kNumbers.size() || kNumbers[index] == kNone) return std::nullopt;
  return static_cast<schema::DType>(kNumbers[index]);
}

std::optional<ScalarType> dtype_from_wire(schema::DType type) noexcept {
  const auto index = static_cast<size_t>(type);
  if (index >= std::size(kTypes)) return std::nullopt;
  return kTypes[index];
}

}  // namespace farspan
