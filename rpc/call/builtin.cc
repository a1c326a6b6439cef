#include <farspan/rpc/call/builtin.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

namespace farspan {
namespace {

// Operators of these words believe what they are told about memory (sparse constructors, too: their
// checks are off by default), show memory that nobody has written, or leave the process.
constexpr std::string_view kNotServed[] = {"unsafe",        "from_file", "set_data",
                                           "storage",       "resize",    "data_ptr",
                                           "record_stream", "lift",      "empty"};

bool is_served(std::string_view base) {
  if (base.starts_with('_') || base.starts_with("sparse_")) return false;
  if (base == "set_" || base == "set") return false;
  for (const std::string_view word : kNotServed) {
    if (base.find(word) != std::string_view::npos) return false;
  }
  return true;
}

c10::OperatorHandle find_operator(std::string_view op) {
  const size_t dot = op.find('.');
  const std::string name(op.substr(0, dot));
  const std::string overload(dot == std::string_view::npos ? "" : op.substr(dot + 1));
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace) || !is_served(name.substr(kNamespace.size()))) {
    throw Error(Code::kNotRegistered, "'" + std::string(op) + "' is no operator that may be called")
        .advice("call a public aten:: operator, or a function of yours that calls this one");
  }
  auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) {
    throw Error(Code::kNotRegistered, "LibTorch has no operator '" + std::string(op) + "'")
        .advice(
            "name it with its overload, as in aten::add.Tensor; "
            "ATen/native/native_functions.yaml lists them");
  }
  return *handle;
}

class IValueReader {
 public:
  explicit IValueReader(Reader& reader) : reader_(reader) {}

  c10::IValue read(schema::Value::Reader in, const c10::Type& type) {
    switch (type.kind()) {
      case c10::TypeKind::OptionalType: {
        if (in.isNone()) return {};
        return read(in, *type.castRaw<c10::OptionalType>()->getElementType());
      }
      case c10::TypeKind::TensorType:
        return Codec<at::Tensor>::read(in, reader_);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return Codec<int64_t>::read(in, reader_);
      case c10::TypeKind::FloatType:
        if (in.isInt64()) return static_cast<double>(in.getInt64());
        return Codec<double>::read(in, reader_);
      case c10::TypeKind::BoolType:
        return Codec<bool>::read(in, reader_);
      case c10::TypeKind::NumberType:
        return Codec<at::Scalar>::read(in, reader_);
      case c10::TypeKind::StringType:
        return Codec<std::string>::read(in, reader_);
      case c10::TypeKind::ScalarTypeType:
        return static_cast<int64_t>(Codec<at::ScalarType>::read(in, reader_));
      case c10::TypeKind::DeviceObjType:
        return Codec<at::Device>::read(in, reader_);
      case c10::TypeKind::ListType:
        return read_list(in, *type.castRaw<c10::ListType>()->getElementType());
      default:
        throw BadValue(Code::kInvalidArgument, "values of type " + type.str() +
                                                   " do not travel; leave it out or pass nullopt");
    }
  }

 private:
  c10::IValue read_list(schema::Value::Reader in, const c10::Type& element) {
    switch (element.kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return Codec<std::vector<int64_t>>::read(in, reader_);
      case c10::TypeKind::FloatType:
        return Codec<std::vector<double>>::read(in, reader_);
      case c10::TypeKind::BoolType:
        return c10::List<bool>(c10::ArrayRef<bool>(read_bools(in)));
      case c10::TypeKind::TensorType:
        return Codec<std::vector<at::Tensor>>::read(in, reader_);
      case c10::TypeKind::OptionalType: {
        c10::List<std::optional<at::Tensor>> list;
        for (auto& each : Codec<std::vector<std::optional<at::Tensor>>>::read(in, reader_)) {
          list.push_back(std::move(each));
        }
        return list;
      }
      default:
        throw BadValue(Code::kInvalidArgument, "lists of " + element.str() + " do not travel");
    }
  }

  c10::SmallVector<bool, 8> read_bools(schema::Value::Reader in) {
    c10::SmallVector<bool, 8> bools;
    for (const bool each : Codec<std::vector<bool>>::read(in, reader_)) bools.push_back(each);
    return bools;
  }

  Reader& reader_;
};

torch::jit::Stack read_stack(std::string_view op, const c10::FunctionSchema& schema,
                             Arguments& arguments) {
  const size_t given = arguments.values.size();
  if (given > schema.arguments().size()) {
    throw Error(Code::kInvalidArgument, "'" + std::string(op) + "' takes " +
                                            std::to_string(schema.arguments().size()) +
                                            " arguments, got " + std::to_string(given));
  }
  torch::jit::Stack stack;
  IValueReader reader(arguments.reader);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const std::string where = "argument '" + argument.name() + "' of '" + std::string(op) + "'";
    if (i >= given) {
      if (!argument.default_value()) {
        throw Error(Code::kInvalidArgument, where + " is missing, and has no default");
      }
      stack.push_back(*argument.default_value());
      continue;
    }
    try {
      stack.push_back(guard_read([&] {
        return reader.read(arguments.values[static_cast<unsigned>(i)], *argument.real_type());
      }));
    } catch (const BadValue& bad) {
      throw bad.as_error(where);
    }
  }
  return stack;
}

std::shared_ptr<Result> result_of(std::string_view op, torch::jit::Stack stack) {
  const auto hold = [](auto value) { return make_result([&] { return std::move(value); }); };
  if (stack.empty()) return make_result([] {});
  if (stack.size() == 1) {
    const c10::IValue& value = stack[0];
    if (value.isTensor()) return hold(value.toTensor());
    if (value.isInt()) return hold(value.toInt());
    if (value.isDouble()) return hold(value.toDouble());
    if (value.isBool()) return hold(value.toBool());
    if (value.isScalar()) return hold(value.toScalar());
    if (value.isTensorList()) return hold(value.toTensorVector());
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    if (!value.isTensor()) {
      throw Error(Code::kInvalidArgument, "'" + std::string(op) + "' gives a " + value.tagKind() +
                                              ", which does not travel");
    }
    tensors.push_back(value.toTensor());
  }
  return hold(std::move(tensors));
}

}  // namespace

std::shared_ptr<Result> invoke_builtin(std::string_view op, Arguments& arguments) {
  const c10::OperatorHandle handle = find_operator(op);
  torch::jit::Stack stack = read_stack(op, handle.schema(), arguments);
  try {
    handle.callBoxed(stack);
  } catch (const c10::Error& failure) {
    throw Error(Code::kRemote, failure.what_without_backtrace())
        .remote_type(demangle(typeid(failure).name()))
        .operation(std::string(op));
  } catch (...) {
    throw to_error(std::current_exception(), Code::kRemote).operation(std::string(op));
  }
  return result_of(op, std::move(stack));
}

}  // namespace farspan
