// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The tensors in what a module's forward() returns: tensors, numbers and text; optional, pair,
// tuple, array, vector, map and other containers of them; structs with FARSPAN_STRUCT. For another
// type of yours, in its namespace:
//
//   template <class Visit>
//   void visit_tensors(const Output& output, Visit&& visit) { visit(output.scores); }
//
// Threading: functions of their arguments.
#pragma once

#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <ATen/core/TensorBody.h>

namespace farspan {
namespace detail {
template <class T>
struct FieldsOf;  // of FARSPAN_STRUCT
}

namespace dist {
namespace detail {

struct AnyVisit {
  void operator()(const at::Tensor&) const;
};
template <class T>
concept VisitedByUser = requires(const T& value) {
  visit_tensors(value, AnyVisit{});
};
template <class T>
concept OptionalLike = requires(const T& value) {
  value.has_value();
  *value;
};
template <class T>
concept PointerLike = requires(const T& value) {
  value.get();
  *value;
};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept StructWithFields = requires {
  farspan_fields(::farspan::detail::FieldsOf<T>{});
};
template <class T>
concept HoldsNone = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> ||
    std::is_convertible_v<T, std::string_view>;

// Whether the tensors of a T can be found.
template <class T>
constexpr bool can_visit();

// Calls `visit(tensor)` for each tensor in `value`.
template <class T, class Visit>
void visit_all(const T& value, Visit& visit) {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) {
    visit(static_cast<const at::Tensor&>(value));
  } else if constexpr (VisitedByUser<T>) {
    visit_tensors(value, visit);
  } else if constexpr (StructWithFields<T>) {
    std::apply([&](const auto&... field) { (visit_all(value.*field.member, visit), ...); },
               farspan_fields(::farspan::detail::FieldsOf<T>{}));
  } else if constexpr (HoldsNone<T>) {
  } else if constexpr (OptionalLike<T> || PointerLike<T>) {
    if (value) visit_all(*value, visit);
  } else if constexpr (std::ranges::range<T>) {
    for (const auto& one : value) visit_all(one, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](const auto&... one) { (visit_all(one, visit), ...); }, value);
  } else {
    static_assert(!can_visit<T>());
  }
}

template <class T>
constexpr bool can_visit_fields() {
  return std::apply(
      [](const auto&... field) {
        return (can_visit<std::remove_cvref_t<decltype(std::declval<T>().*field.member)>>() && ...);
      },
      farspan_fields(::farspan::detail::FieldsOf<T>{}));
}

template <class T, size_t... index>
constexpr bool can_visit_tuple(std::index_sequence<index...>) {
  return (can_visit<std::remove_cvref_t<std::tuple_element_t<index, T>>>() && ...);
}

template <class T>
constexpr bool can_visit() {
  if constexpr (std::is_convertible_v<const T&, const at::Tensor&> || VisitedByUser<T>) {
    return true;
  } else if constexpr (StructWithFields<T>) {
    return can_visit_fields<T>();
  } else if constexpr (HoldsNone<T>) {
    return true;
  } else if constexpr (OptionalLike<T> || PointerLike<T>) {
    return can_visit<std::remove_cvref_t<decltype(*std::declval<const T&>())>>();
  } else if constexpr (std::ranges::range<T>) {
    return can_visit<std::remove_cvref_t<std::ranges::range_reference_t<const T&>>>();
  } else if constexpr (TupleLike<T>) {
    return can_visit_tuple<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

}  // namespace detail

// The tensors in `value`, in order; nothing where its type is not one of the above.
template <class T>
std::optional<std::vector<at::Tensor>> tensors_in(const T& value) {
  if constexpr (detail::can_visit<T>()) {
    std::vector<at::Tensor> found;
    const auto keep = [&](const at::Tensor& tensor) { found.push_back(tensor); };
    detail::visit_all(value, keep);
    return found;
  } else {
    return std::nullopt;
  }
}

}  // namespace dist
}  // namespace farspan
