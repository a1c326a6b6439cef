// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Codec<T> itself, and the codecs of simple types: bool, integers, floating numbers, enums,
// strings, std::monostate, durations. codec.h has them all.
#pragma once

#include <chrono>
#include <concepts>
#include <limits>
#include <string>
#include <type_traits>
#include <variant>

#include <farspan/c10d/values/value_io.h>

namespace farspan {

// type_name  equal on both sides, whatever the compiler: it is part of a function's signature
// write      throws BadValue when this value cannot travel
// read       throws BadValue when the value is none of T's
template <class T>
struct Codec;

template <class T>
concept Encodable = requires(schema::Value::Builder out, schema::Value::Reader in, const T& value,
                             Writer& writer, Reader& reader) {
  { Codec<T>::type_name() } -> std::convertible_to<std::string>;
  Codec<T>::write(out, value, writer);
  { Codec<T>::read(in, reader) } -> std::same_as<T>;
};

template <>
struct Codec<bool> {
  static std::string type_name() { return "bool"; }
  static void write(schema::Value::Builder out, bool value, Writer&) { out.setBoolean(value); }
  static bool read(schema::Value::Reader in, Reader&) {
    if (!in.isBoolean()) throw_mismatch("bool", in);
    return in.getBoolean();
  }
};

// Of at most 64 bits; characters are numbers here. What does not fit into T is refused.
template <std::integral T>
requires(sizeof(T) <= 8 && !std::same_as<T, bool>) struct Codec<T> {
  static std::string type_name() {
    return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
  }
  static void write(schema::Value::Builder out, T value, Writer&) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return out.setUint64(value);
    }
    out.setInt64(static_cast<int64_t>(value));
  }
  static T read(schema::Value::Reader in, Reader&) {
    using Limits = std::numeric_limits<T>;
    if (in.isInt64()) {
      const int64_t value = in.getInt64();
      const bool fits = std::is_unsigned_v<T>
                            ? value >= 0 && static_cast<uint64_t>(value) <= uint64_t{Limits::max()}
                            : value >= int64_t(Limits::min()) && value <= int64_t(Limits::max());
      if (fits) return static_cast<T>(value);
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8) {
      if (in.isUint64()) return in.getUint64();
    }
    throw_mismatch(type_name(), in);
  }
};

template <class T>
requires(std::same_as<T, float> || std::same_as<T, double>) struct Codec<T> {
  static std::string type_name() { return sizeof(T) == 4 ? "float32" : "float64"; }
  static void write(schema::Value::Builder out, T value, Writer&) { out.setFloat64(value); }
  static T read(schema::Value::Reader in, Reader&) {
    if (!in.isFloat64()) throw_mismatch(type_name(), in);
    return static_cast<T>(in.getFloat64());
  }
};

// As its number. A number that the underlying type can hold is taken even if no enumerator has it,
// as static_cast does.
template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static std::string type_name() { return "enum " + demangle(typeid(T).name()); }
  static void write(schema::Value::Builder out, T value, Writer& writer) {
    Codec<Number>::write(out, static_cast<Number>(value), writer);
  }
  static T read(schema::Value::Reader in, Reader& reader) {
    return static_cast<T>(Codec<Number>::read(in, reader));
  }
};

// Any bytes, with zeros among them, too.
template <>
struct Codec<std::string> {
  static std::string type_name() { return "string"; }
  static void write(schema::Value::Builder out, const std::string& value, Writer& writer);
  static std::string read(schema::Value::Reader in, Reader& reader);
};

template <>
struct Codec<std::monostate> {
  static std::string type_name() { return "none"; }
  static void write(schema::Value::Builder out, std::monostate, Writer&) { out.setNone(); }
  static std::monostate read(schema::Value::Reader in, Reader&) {
    if (!in.isNone()) throw_mismatch("none", in);
    return {};
  }
};

// As its count; the unit is part of the type's name.
template <class Rep, class Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using Duration = std::chrono::duration<Rep, Period>;
  static std::string type_name() {
    return "duration<" + Codec<Rep>::type_name() + "," + std::to_string(Period::num) + "/" +
           std::to_string(Period::den) + " s>";
  }
  static void write(schema::Value::Builder out, const Duration& value, Writer& writer) {
    Codec<Rep>::write(out, value.count(), writer);
  }
  static Duration read(schema::Value::Reader in, Reader& reader) {
    return Duration(Codec<Rep>::read(in, reader));
  }
};

// The two ends of a message. They turn what goes wrong into an Error that begins with `where`
// ("result of 'square'"), and run inside guard_write() and guard_read() as well.
//   throws  Error kInvalidArgument: not a T, or too large; kCorrupt: not a message
template <Encodable T>
void write_value(schema::Value::Builder out, const T& value, Writer& writer,
                 std::string_view where) {
  try {
    guard_write([&] { Codec<T>::write(out, value, writer); });
  } catch (const BadValue& bad) {
    throw bad.as_error(where);
  }
}
template <Encodable T>
T read_value(schema::Value::Reader in, Reader& reader, std::string_view where) {
  try {
    return guard_read([&] { return Codec<T>::read(in, reader); });
  } catch (const BadValue& bad) {
    throw bad.as_error(where);
  }
}

}  // namespace farspan
