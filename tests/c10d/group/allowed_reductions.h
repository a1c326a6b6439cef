// Which reductions are allowed of which types, written down once more: what the product says of
// itself (why_not) is compared with this, and the conformance suite goes by it.
#pragma once

#include <array>
#include <string_view>

#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::testing {

struct AllowedReductions {
  DType type;
  std::string_view ops;  // '+' where it is allowed, in the order of ReduceOp::Kind
};

inline constexpr std::string_view kReductionNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                                       "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
// clang-format off
inline constexpr std::array kAllowedReductions = {
    // SUM AVG PRODUCT MIN MAX, BAND BOR BXOR, PREMUL_SUM
    AllowedReductions{DType::UINT8,          "+-+++" "+++" "-"},
    AllowedReductions{DType::INT8,           "+-+++" "+++" "-"},
    AllowedReductions{DType::INT16,          "+-+++" "+++" "-"},
    AllowedReductions{DType::INT32,          "+-+++" "+++" "-"},
    AllowedReductions{DType::INT64,          "+-+++" "+++" "-"},
    AllowedReductions{DType::UINT16,         "+-+++" "+++" "-"},
    AllowedReductions{DType::UINT32,         "+-+++" "+++" "-"},
    AllowedReductions{DType::UINT64,         "+-+++" "+++" "-"},
    AllowedReductions{DType::FLOAT16,        "+++++" "---" "+"},
    AllowedReductions{DType::BFLOAT16,       "+++++" "---" "+"},
    AllowedReductions{DType::FLOAT32,        "+++++" "---" "+"},
    AllowedReductions{DType::FLOAT64,        "+++++" "---" "+"},
    AllowedReductions{DType::COMPLEX32,      "+++--" "---" "+"},
    AllowedReductions{DType::COMPLEX64,      "+++--" "---" "+"},
    AllowedReductions{DType::COMPLEX128,     "+++--" "---" "+"},
    AllowedReductions{DType::BOOL,           "+-+++" "+++" "-"},
    AllowedReductions{DType::FLOAT8E5M2,     "-----" "---" "-"},
    AllowedReductions{DType::FLOAT8E4M3FN,   "-----" "---" "-"},
    AllowedReductions{DType::FLOAT8E5M2FNUZ, "-----" "---" "-"},
    AllowedReductions{DType::FLOAT8E4M3FNUZ, "-----" "---" "-"},
    AllowedReductions{DType::FLOAT8E8M0FNU,  "-----" "---" "-"},
    AllowedReductions{DType::FLOAT4E2M1FNX2, "-----" "---" "-"},
    AllowedReductions{DType::BITS8,          "-----" "---" "-"},
    AllowedReductions{DType::BITS16,         "-----" "---" "-"},
    AllowedReductions{DType::BITS1X8,        "-----" "---" "-"},
    AllowedReductions{DType::BITS2X4,        "-----" "---" "-"},
    AllowedReductions{DType::BITS4X2,        "-----" "---" "-"},
    AllowedReductions{DType::INT1,           "-----" "---" "-"},
    AllowedReductions{DType::INT2,           "-----" "---" "-"},
    AllowedReductions{DType::INT3,           "-----" "---" "-"},
    AllowedReductions{DType::INT4,           "-----" "---" "-"},
    AllowedReductions{DType::INT5,           "-----" "---" "-"},
    AllowedReductions{DType::INT6,           "-----" "---" "-"},
    AllowedReductions{DType::INT7,           "-----" "---" "-"},
    AllowedReductions{DType::UINT1,          "-----" "---" "-"},
    AllowedReductions{DType::UINT2,          "-----" "---" "-"},
    AllowedReductions{DType::UINT3,          "-----" "---" "-"},
    AllowedReductions{DType::UINT4,          "-----" "---" "-"},
    AllowedReductions{DType::UINT5,          "-----" "---" "-"},
    AllowedReductions{DType::UINT6,          "-----" "---" "-"},
    AllowedReductions{DType::UINT7,          "-----" "---" "-"},
};
// clang-format on

inline constexpr bool is_allowed(ReduceOp::Kind op, DType type) {
  return kAllowedReductions.at(static_cast<size_t>(type)).ops.at(op) == '+';
}

}  // namespace farspan::dist::testing
