#include <farspan/c10d/values/codec_tensor.h>

#include <c10/util/Exception.h>

#include <array>
#include <complex>

#include <farspan/c10d/values/codec_list.h>
#include <farspan/c10d/values/dtype.h>

namespace farspan {

void Codec<at::Scalar>::write(schema::Value::Builder out, const at::Scalar& value, Writer& writer) {
  if (value.isSymbolic()) throw BadValue(Code::kInvalidArgument, "a symbolic scalar");
  if (value.isBoolean()) {
    out.setBoolean(value.toBool());
  } else if (value.type() == at::kUInt64) {
    Codec<uint64_t>::write(out, value.toUInt64(), writer);
  } else if (value.isIntegral(false)) {
    out.setInt64(value.toLong());
  } else if (value.isComplex()) {
    const auto number = value.toComplexDouble();
    Codec<std::array<double, 2>>::write(out, {number.real(), number.imag()}, writer);
  } else {
    out.setFloat64(value.toDouble());
  }
}

at::Scalar Codec<at::Scalar>::read(schema::Value::Reader in, Reader& reader) {
  switch (in.which()) {
    case schema::Value::BOOLEAN:
      return at::Scalar(in.getBoolean());
    case schema::Value::INT64:
      return at::Scalar(in.getInt64());
    case schema::Value::UINT64:
      return at::Scalar(in.getUint64());
    case schema::Value::FLOAT64:
      return at::Scalar(in.getFloat64());
    case schema::Value::ARRAY: {
      const auto parts = Codec<std::array<double, 2>>::read(in, reader);
      return at::Scalar(c10::complex<double>(parts[0], parts[1]));
    }
    default:
      throw_mismatch(type_name(), in);
  }
}

void Codec<at::ScalarType>::write(schema::Value::Builder out, at::ScalarType value, Writer&) {
  const auto type = dtype_to_wire(value);
  if (!type) {
    throw BadValue(Code::kInvalidArgument,
                   std::string("dtype ") + c10::toString(value) + " does not travel");
  }
  out.setInt64(static_cast<int64_t>(*type));
}

at::ScalarType Codec<at::ScalarType>::read(schema::Value::Reader in, Reader& reader) {
  const auto number = Codec<uint16_t>::read(in, reader);
  const auto type = dtype_from_wire(static_cast<schema::DType>(number));
  if (!type) throw BadValue(Code::kInvalidArgument, "unknown dtype " + std::to_string(number));
  return *type;
}

void Codec<at::Device>::write(schema::Value::Builder out, const at::Device& value, Writer&) {
  out.setText(value.str());
}

at::Device Codec<at::Device>::read(schema::Value::Reader in, Reader& reader) {
  const std::string name = Codec<std::string>::read(in, reader);
  try {
    return at::Device(name);
  } catch (const c10::Error&) {
    throw BadValue(Code::kInvalidArgument, "no device is called '" + name + "'");
  }
}

}  // namespace farspan
