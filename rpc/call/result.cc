#include <farspan/rpc/call/result.h>

namespace farspan::detail {

void throw_not_encodable(const std::type_info& type) {
  throw Error(Code::kInvalidArgument,
              "a result of type '" + demangle(type.name()) + "' cannot travel")
      .advice(
          "call it with remote(), which leaves the result where it is, or give the type a "
          "Codec (FARSPAN_STRUCT)");
}

void throw_wrong_result(const std::type_info& held, const std::type_info& wanted) {
  throw Error(Code::kInvalidArgument, "the value is of type '" + demangle(held.name()) +
                                          "', not '" + demangle(wanted.name()) + "'");
}

const std::shared_ptr<Result>& void_result() {
  static const std::shared_ptr<Result> result = std::make_shared<VoidResult>();
  return result;
}

}  // namespace farspan::detail
