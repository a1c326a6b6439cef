// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codecs of std::vector and std::array. Those of numbers travel packed; above kMaxInlineBytes in a
// segment of their own. What they throw, and threading: codec.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/values/codec_simple.h>

namespace farspan {
namespace detail {

// Numbers whose bytes are the wire's form.
template <class T>
concept Packable = (std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8) ||
                   std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, std::byte>;

template <Packable T>
constexpr schema::Element element_of() {
  if constexpr (sizeof(T) == 1) {
    return schema::Element::BYTE;
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? schema::Element::FLOAT32 : schema::Element::FLOAT64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 2   ? schema::Element::INT16
           : sizeof(T) == 4 ? schema::Element::INT32
                            : schema::Element::INT64;
  } else {
    return sizeof(T) == 2   ? schema::Element::UINT16
           : sizeof(T) == 4 ? schema::Element::UINT32
                            : schema::Element::UINT64;
  }
}

using TypeName = std::string (*)();  // called for messages only

void write_packed(schema::Value::Builder out, schema::Element element,
                  std::span<const std::byte> bytes, Writer& writer);
// A whole number of `width`; valid as long as message and segments.
std::span<const std::byte> read_packed(schema::Value::Reader in, schema::Element element,
                                       size_t width, TypeName expected, Reader& reader);

// The elements of a list; `size` < 0: any number.
capnp::List<schema::Value>::Reader elements_of(schema::Value::Reader in, TypeName expected,
                                               int64_t size = -1);

// Writes or reads one element; a BadValue gets its index.
template <class Fn>
decltype(auto) at_index(size_t index, Fn&& fn) {
  try {
    return fn();
  } catch (BadValue& bad) {
    bad.prefix_path("[" + std::to_string(index) + "]");
    throw;
  }
}

// How many elements to make room for at once: a few bytes must not ask for gigabytes.
template <class T>
constexpr size_t reservation(size_t count) {
  return std::min(count, std::max<size_t>(1, (size_t{1} << 20) / sizeof(T)));
}

template <class T, class Range>
void write_elements(schema::Value::Builder out, const Range& values, Writer& writer) {
  const Writer::Nest nest(writer);
  auto list = out.initList(static_cast<unsigned>(std::size(values)));
  unsigned i = 0;
  for (const auto& value : values) {
    at_index(i, [&] { Codec<T>::write(list[i], value, writer); });
    ++i;
  }
}

}  // namespace detail

template <Encodable T, class A>
struct Codec<std::vector<T, A>> {
  static std::string type_name() {
    if constexpr (detail::Packable<T> && sizeof(T) == 1) return "bytes";
    return "list<" + Codec<T>::type_name() + ">";
  }
  static void write(schema::Value::Builder out, const std::vector<T, A>& values, Writer& writer) {
    if constexpr (detail::Packable<T>) {
      detail::write_packed(out, detail::element_of<T>(), std::as_bytes(std::span(values)), writer);
    } else {
      detail::write_elements<T>(out, values, writer);
    }
  }
  static std::vector<T, A> read(schema::Value::Reader in, Reader& reader) {
    std::vector<T, A> values;
    if constexpr (detail::Packable<T>) {
      const auto bytes =
          detail::read_packed(in, detail::element_of<T>(), sizeof(T), type_name, reader);
      values.resize(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      const auto list = detail::elements_of(in, type_name);
      values.reserve(detail::reservation<T>(list.size()));
      for (unsigned i = 0; i < list.size(); ++i) {
        detail::at_index(i, [&] { values.push_back(Codec<T>::read(list[i], reader)); });
      }
    }
    return values;
  }
};

template <Encodable T, size_t N>
struct Codec<std::array<T, N>> {
  static std::string type_name() {
    return "array<" + Codec<T>::type_name() + "," + std::to_string(N) + ">";
  }
  static void write(schema::Value::Builder out, const std::array<T, N>& values, Writer& writer) {
    if constexpr (detail::Packable<T>) {
      detail::write_packed(out, detail::element_of<T>(), std::as_bytes(std::span(values)), writer);
    } else {
      detail::write_elements<T>(out, values, writer);
    }
  }
  static std::array<T, N> read(schema::Value::Reader in, Reader& reader) {
    if constexpr (detail::Packable<T>) {
      const auto bytes =
          detail::read_packed(in, detail::element_of<T>(), sizeof(T), type_name, reader);
      if (bytes.size() != sizeof(T) * N) throw_mismatch(type_name(), in);
      std::array<T, N> values;
      if constexpr (N > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    } else {
      const auto list = detail::elements_of(in, type_name, N);
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return std::array<T, N>{
            detail::at_index(I, [&] { return Codec<T>::read(list[I], reader); })...};
      }
      (std::make_index_sequence<N>());
    }
  }
};

}  // namespace farspan
