// The loops behind kernels::reduce, compiled once for each kind of processor in a namespace of its
// own, FARSPAN_PROCESSOR. No function of the standard library is used here (traits are types only):
// the linker keeps one copy of such a function, and must not keep one that uses instructions which
// are not there.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include <farspan/c10d/backends/kernels/table.h>

#ifndef FARSPAN_PROCESSOR
#define FARSPAN_PROCESSOR baseline
#endif

namespace farspan::dist::kernels::FARSPAN_PROCESSOR {

template <class To, class From>
inline To bits_of(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// How an element lies in memory, and what is computed with.
template <class T>
struct Plain {
  using Stored = T;
  using Wide = T;
  static Wide load(Stored x) noexcept { return x; }
  static Stored store(Wide x) noexcept { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static Wide load(Stored x) noexcept { return bits_of<float>(static_cast<uint32_t>(x) << 16); }
  static Stored store(Wide x) noexcept {  // to nearest, ties to even
    const uint32_t bits = bits_of<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<Stored>(x != x ? 0x7fc0u : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static Wide load(Stored x) noexcept {
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
    const uint32_t exponent = (x >> 10) & 31u, fraction = x & 0x3ffu;
    const uint32_t normal = ((exponent + 112u) << 23) | (fraction << 13);
    const uint32_t small = bits_of<uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
    const uint32_t special = 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u);
    return bits_of<float>(sign | (exponent == 0 ? small : exponent == 31 ? special : normal));
  }
  static Stored store(Wide x) noexcept {  // to nearest, ties to even
    const uint32_t bits = bits_of<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    // One half has steps of 2^-24, as have the numbers below 2^-14 here.
    const uint32_t small = bits_of<uint32_t>(bits_of<float>(size) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (size + 0xfffu + ((size >> 13) & 1u) - (112u << 23)) >> 13;
    const uint32_t nan = 0x7e00u | ((size >> 13) & 0x3ffu);
    const uint32_t rest = size > 0x7f800000u ? nan : 0x7c00u;  // from 65520 on it is infinite
    return static_cast<Stored>(sign | (size < 0x38800000u   ? small
                                       : size < 0x477ff000u ? normal
                                                            : rest));
  }
};

template <class Part>
struct Complex {
  struct Stored {
    typename Part::Stored re, im;
  };
  struct Wide {
    typename Part::Wide re, im;
  };
  static Wide load(Stored x) noexcept { return {Part::load(x.re), Part::load(x.im)}; }
  static Stored store(Wide x) noexcept { return {Part::store(x.re), Part::store(x.im)}; }
};

// Integers: unsigned, and no narrower than int, so that what leaves the type wraps around.
template <class T>
struct Modular {
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using type = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, Wide, T>;
};

struct Sum {
  template <class T>
  static T apply(T a, T b) noexcept {
    using M = typename Modular<T>::type;
    return static_cast<T>(static_cast<M>(a) + static_cast<M>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) noexcept {
    using M = typename Modular<T>::type;
    return static_cast<T>(static_cast<M>(a) * static_cast<M>(b));
  }
};
struct ComplexProduct {
  template <class T>
  static T apply(T a, T b) noexcept {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};
// As torch's: what is no number wins.
struct Min {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a != a || a < b ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) noexcept {
    return a != a || a > b ? a : b;
  }
};
struct And {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) noexcept {
    return static_cast<T>(a ^ b);
  }
};

template <class Element, class Step>
void reduce_two(typename Element::Stored* out, const typename Element::Stored* a,
                const typename Element::Stored* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = Element::store(Step::apply(Element::load(a[i]), Element::load(b[i])));
  }
}

// In blocks that stay in the first cache, so that `out` is written once.
template <class Element, class Step>
void reduce_many(void* out_bytes, const void* const* in, int ranks, size_t count, int divisor) {
  using Stored = typename Element::Stored;
  using Wide = typename Element::Wide;
  auto* out = static_cast<Stored*>(out_bytes);
  const auto of = [&](int rank) { return static_cast<const Stored*>(in[rank]); };
  if (ranks == 2 && divisor == 1) return reduce_two<Element, Step>(out, of(0), of(1), count);
  constexpr size_t kBlock = 512;
  Wide sums[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = count - begin < kBlock ? count - begin : kBlock;
    for (size_t i = 0; i < size; ++i) sums[i] = Element::load(of(0)[begin + i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const Stored* next = of(rank) + begin;
      for (size_t i = 0; i < size; ++i) {
        sums[i] = Step::apply(sums[i], Element::load(next[i]));
      }
    }
    if constexpr (requires(Wide wide) { wide / Wide(divisor); }) {
      if (divisor != 1) {
        const Wide by = static_cast<Wide>(divisor);
        for (size_t i = 0; i < size; ++i) sums[i] = sums[i] / by;
      }
    }
    for (size_t i = 0; i < size; ++i) out[begin + i] = Element::store(sums[i]);
  }
}

template <class Element>
constexpr void fill_integer(Row& row) {
  row[ReduceOp::kSum] = reduce_many<Element, Sum>;
  row[ReduceOp::kProduct] = reduce_many<Element, Product>;
  row[ReduceOp::kMin] = reduce_many<Element, Min>;
  row[ReduceOp::kMax] = reduce_many<Element, Max>;
  row[ReduceOp::kBand] = reduce_many<Element, And>;
  row[ReduceOp::kBor] = reduce_many<Element, Or>;
  row[ReduceOp::kBxor] = reduce_many<Element, Xor>;
}

template <class Element>
constexpr void fill_floating(Row& row) {
  row[ReduceOp::kSum] = reduce_many<Element, Sum>;
  row[ReduceOp::kAvg] = reduce_many<Element, Sum>;
  row[ReduceOp::kPremulSum] = reduce_many<Element, Sum>;
  row[ReduceOp::kProduct] = reduce_many<Element, Product>;
  row[ReduceOp::kMin] = reduce_many<Element, Min>;
  row[ReduceOp::kMax] = reduce_many<Element, Max>;
}

// The two parts of a complex number are added as if they were elements: reduce() doubles the count.
template <class Part>
constexpr void fill_complex(Row& row) {
  row[ReduceOp::kSum] = reduce_many<Part, Sum>;
  row[ReduceOp::kAvg] = reduce_many<Part, Sum>;
  row[ReduceOp::kPremulSum] = reduce_many<Part, Sum>;
  row[ReduceOp::kProduct] = reduce_many<Complex<Part>, ComplexProduct>;
}

constexpr Table make_table() {
  Table table = {};
  const auto row = [&](DType type) -> Row& { return table.rows[static_cast<size_t>(type)]; };
  fill_integer<Plain<uint8_t>>(row(DType::UINT8));
  fill_integer<Plain<int8_t>>(row(DType::INT8));
  fill_integer<Plain<int16_t>>(row(DType::INT16));
  fill_integer<Plain<int32_t>>(row(DType::INT32));
  fill_integer<Plain<int64_t>>(row(DType::INT64));
  fill_integer<Plain<uint16_t>>(row(DType::UINT16));
  fill_integer<Plain<uint32_t>>(row(DType::UINT32));
  fill_integer<Plain<uint64_t>>(row(DType::UINT64));
  fill_floating<Float16>(row(DType::FLOAT16));
  fill_floating<BFloat16>(row(DType::BFLOAT16));
  fill_floating<Plain<float>>(row(DType::FLOAT32));
  fill_floating<Plain<double>>(row(DType::FLOAT64));
  fill_complex<Float16>(row(DType::COMPLEX32));
  fill_complex<Plain<float>>(row(DType::COMPLEX64));
  fill_complex<Plain<double>>(row(DType::COMPLEX128));
  // A bool is a byte that is 0 or 1.
  Row& boolean = row(DType::BOOL);
  boolean[ReduceOp::kSum] = boolean[ReduceOp::kMax] = reduce_many<Plain<uint8_t>, Or>;
  boolean[ReduceOp::kProduct] = boolean[ReduceOp::kMin] = reduce_many<Plain<uint8_t>, And>;
  boolean[ReduceOp::kBand] = reduce_many<Plain<uint8_t>, And>;
  boolean[ReduceOp::kBor] = reduce_many<Plain<uint8_t>, Or>;
  boolean[ReduceOp::kBxor] = reduce_many<Plain<uint8_t>, Xor>;
  return table;
}

}  // namespace farspan::dist::kernels::FARSPAN_PROCESSOR
