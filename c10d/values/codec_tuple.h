// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codecs of std::pair, tuple, optional and variant. What they throw, and threading: codec.h.
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include <farspan/c10d/values/codec_list.h>

namespace farspan {
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
}  // namespace detail

template <Encodable A, Encodable B>
struct Codec<std::pair<A, B>> : detail::TupleCodec<std::pair<A, B>, A, B> {};

template <Encodable... T>
struct Codec<std::tuple<T...>> : detail::TupleCodec<std::tuple<T...>, T...> {};

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
