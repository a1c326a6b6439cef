// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codecs of std::vector, array, pair, tuple, set, unordered_set, optional and variant. Vectors and
// arrays of numbers travel packed; above kMaxInlineBytes in a segment of their own.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>
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

namespace detail {
template <class Tuple, class... T>
struct TupleCodec {
  static std::string type_name() {
    std::string names;
    ((names += (names.empty() ? "" : ",") + Codec<T>::type_name()), ...);
    return "tuple<" + names + ">";
  }
  static void write(schema::Value::Builder out, const Tuple& values, Writer& writer) {
    const Writer::Nest nest(writer);
    auto list = out.initList(sizeof...(T));
    [&]<size_t... I>(std::index_sequence<I...>) {
      (at_index(I, [&] { Codec<T>::write(list[I], std::get<I>(values), writer); }), ...);
    }
    (std::index_sequence_for<T...>());
  }
  static Tuple read(schema::Value::Reader in, Reader& reader) {
    [[maybe_unused]] const auto list = elements_of(in, type_name, sizeof...(T));
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Tuple{at_index(I, [&] { return Codec<T>::read(list[I], reader); })...};
    }
    (std::index_sequence_for<T...>());
  }
};

template <class Set, class T>
struct SetCodec {
  static std::string type_name() { return "set<" + Codec<T>::type_name() + ">"; }
  static void write(schema::Value::Builder out, const Set& values, Writer& writer) {
    write_elements<T>(out, values, writer);
  }
  static Set read(schema::Value::Reader in, Reader& reader) {
    const auto list = elements_of(in, type_name);
    Set values;
    for (unsigned i = 0; i < list.size(); ++i) {
      at_index(i, [&] {
        if (!values.insert(Codec<T>::read(list[i], reader)).second) {
          throw BadValue(Code::kCorrupt, "an element that was there before");
        }
      });
    }
    return values;
  }
};
}  // namespace detail

template <Encodable A, Encodable B>
struct Codec<std::pair<A, B>> : detail::TupleCodec<std::pair<A, B>, A, B> {};

template <Encodable... T>
struct Codec<std::tuple<T...>> : detail::TupleCodec<std::tuple<T...>, T...> {};

template <Encodable T, class C, class A>
struct Codec<std::set<T, C, A>> : detail::SetCodec<std::set<T, C, A>, T> {};

template <Encodable T, class H, class E, class A>
struct Codec<std::unordered_set<T, H, E, A>> : detail::SetCodec<std::unordered_set<T, H, E, A>, T> {
};

template <Encodable T>
struct Codec<std::optional<T>> {
  static std::string type_name() { return "optional<" + Codec<T>::type_name() + ">"; }
  static void write(schema::Value::Builder out, const std::optional<T>& value, Writer& writer) {
    if (!value) return out.setNone();
    Codec<T>::write(out, *value, writer);
    // An optional in an optional, say: it could not be told apart from an empty one.
    if (out.isNone()) throw BadValue(Code::kInvalidArgument, "a full optional that holds nothing");
  }
  static std::optional<T> read(schema::Value::Reader in, Reader& reader) {
    if (in.isNone()) return std::nullopt;
    return Codec<T>::read(in, reader);
  }
};

// As its index and its value.
template <Encodable... T>
struct Codec<std::variant<T...>> {
  using Variant = std::variant<T...>;
  static std::string type_name() {
    std::string names;
    ((names += (names.empty() ? "" : "|") + Codec<T>::type_name()), ...);
    return "variant<" + names + ">";
  }
  static void write(schema::Value::Builder out, const Variant& value, Writer& writer) {
    if (value.valueless_by_exception()) throw BadValue(Code::kInvalidArgument, "an empty variant");
    const Writer::Nest nest(writer);
    auto list = out.initList(2);
    list[0].setInt64(static_cast<int64_t>(value.index()));
    std::visit(
        [&]<class V>(const V& alternative) { Codec<V>::write(list[1], alternative, writer); },
        value);
  }
  static Variant read(schema::Value::Reader in, Reader& reader) {
    const auto list = detail::elements_of(in, type_name, 2);
    const auto index = Codec<uint64_t>::read(list[0], reader);
    if (index >= sizeof...(T)) {
      throw BadValue(Code::kInvalidArgument,
                     "alternative " + std::to_string(index) + " of " + type_name());
    }
    return [&]<size_t... I>(std::index_sequence<I...>) {
      std::optional<Variant> value;
      (void)((I == index
                  ? (value.emplace(std::in_place_index<I>, Codec<T>::read(list[1], reader)), true)
                  : false) ||
             ...);
      return std::move(*value);
    }
    (std::index_sequence_for<T...>());
  }
};

}  // namespace farspan
