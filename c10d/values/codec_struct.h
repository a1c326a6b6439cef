// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FARSPAN_STRUCT: lets a struct of yours travel, as its fields by name.
//
//   struct Batch { at::Tensor images, labels; int64_t epoch = 0; };
//   FARSPAN_STRUCT(Batch, images, labels, epoch);
//
// In the namespace of the struct, right after it, before any function that uses it is registered.
// The struct must be default-constructible and its fields accessible. Both sides must list the
// same fields; one that is missing or not known is an error that names it: BadValue, which calls
// turn into kInvalidArgument.
//
// Threading: a value is written and read by one thread at a time: arguments are written by the
//            caller's thread, and read by the one that runs the function.
#pragma once

#include <array>
#include <string_view>
#include <tuple>
#include <typeinfo>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/values/codec_list.h>
#include <farspan/c10d/values/for_each.h>

#define FARSPAN_STRUCT(Type, ...)                                                            \
  [[maybe_unused]] inline constexpr auto farspan_fields(::farspan::detail::FieldsOf<Type>) { \
    return std::tuple(FARSPAN_FOR_EACH(FARSPAN_STRUCT_FIELD, Type, __VA_ARGS__));            \
  }                                                                                          \
  static_assert(std::is_default_constructible_v<Type>, #Type " needs a default constructor")

#define FARSPAN_STRUCT_FIELD(Type, field) \
  ::farspan::detail::Field { #field, &Type::field }

namespace farspan {
namespace detail {

template <class T>
struct FieldsOf {};

template <class C, class M>
struct Field {
  std::string_view name;
  M C::*member;
};
template <class C, class M>
Field(const char*, M C::*) -> Field<C, M>;

template <class T>
concept Described = requires {
  farspan_fields(FieldsOf<T>{});
};

// Reads the fields of `in` into the order of `names`.
//   throws  BadValue: one is missing, not known, or there twice
void match_fields(schema::Value::Reader in, TypeName type, std::span<const std::string_view> names,
                  std::span<schema::Value::Reader> found);

template <class Fn>
decltype(auto) at_field(std::string_view name, Fn&& fn) {
  try {
    return fn();
  } catch (BadValue& bad) {
    bad.prefix_path("." + std::string(name));
    throw;
  }
}

}  // namespace detail

template <detail::Described T>
struct Codec<T> {
  static std::string type_name() { return "struct " + demangle(typeid(T).name()); }

  static void write(schema::Value::Builder out, const T& value, Writer& writer) {
    const Writer::Nest nest(writer);
    std::apply(
        [&](const auto&... field) {
          auto fields = out.initRecord(sizeof...(field));
          unsigned i = 0;
          (write_field(fields[i++], field, value, writer), ...);
        },
        farspan_fields(detail::FieldsOf<T>{}));
  }

  static T read(schema::Value::Reader in, Reader& reader) {
    T value{};
    std::apply(
        [&](const auto&... field) {
          constexpr size_t kCount = sizeof...(field);
          const std::array<std::string_view, kCount> names{field.name...};
          std::array<schema::Value::Reader, kCount> found;
          detail::match_fields(in, type_name, names, found);
          size_t i = 0;
          (read_field(found[i++], field, value, reader), ...);
        },
        farspan_fields(detail::FieldsOf<T>{}));
    return value;
  }

 private:
  template <class C, class M>
  static void write_field(schema::Field::Builder out, const detail::Field<C, M>& field,
                          const T& value, Writer& writer) {
    static_assert(Encodable<M>, "a field's type has no Codec");
    out.setName({field.name.data(), field.name.size()});
    detail::at_field(field.name,
                     [&] { Codec<M>::write(out.initValue(), value.*(field.member), writer); });
  }
  template <class C, class M>
  static void read_field(schema::Value::Reader in, const detail::Field<C, M>& field, T& value,
                         Reader& reader) {
    detail::at_field(field.name, [&] { value.*(field.member) = Codec<M>::read(in, reader); });
  }
};

template <detail::Described T>
struct TensorsIn<T> {
  static constexpr bool kAny = true;
  template <class Fn>
  static void visit(const T& value, const Fn& fn) {
    std::apply([&](const auto&... field) { (for_each_tensor(value.*(field.member), fn), ...); },
               farspan_fields(detail::FieldsOf<T>{}));
  }
};

}  // namespace farspan
