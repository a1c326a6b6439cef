#include <farspan/c10d/values/value_io.h>

namespace farspan {

Error BadValue::as_error(std::string_view where) const {
  std::string text(where);
  if (!path_.empty()) text += ", at " + path_;
  return Error(code_, text + ": " + message_);
}

uint32_t Writer::add(const at::Tensor& tensor) {
  // Short lists only: the search must not cost more than what it saves.
  constexpr size_t kLookBack = 8;
  const size_t count = tensors_.size();
  for (size_t i = count > kLookBack ? count - kLookBack : 0; i < count; ++i) {
    if (tensors_[i].is_same(tensor)) return static_cast<uint32_t>(i);
  }
  tensors_.push_back(tensor);
  return static_cast<uint32_t>(count);
}

uint32_t Writer::add_segment(std::span<const std::byte> bytes) {
  segments_.push_back(Buffer::copy_of(bytes));
  return static_cast<uint32_t>(segments_.size() - 1);
}

Writer::Nest::Nest(Writer& writer) : writer_(writer) {
  if (writer.depth_ >= kMaxValueDepth) {
    throw BadValue(Code::kInvalidArgument, "more than " + std::to_string(kMaxValueDepth) +
                                               " lists, maps and structs in each other");
  }
  ++writer.depth_;
}

const at::Tensor& Reader::tensor(uint32_t index) const {
  if (index >= tensors_.size()) {
    throw BadValue(Code::kCorrupt, "tensor " + std::to_string(index) + " of a message with " +
                                       std::to_string(tensors_.size()));
  }
  return tensors_[index];
}

std::span<const std::byte> Reader::segment(uint32_t index) {
  if (index >= segments_.size()) {
    throw BadValue(Code::kCorrupt, "segment " + std::to_string(index) + " of a message with " +
                                       std::to_string(segments_.size()));
  }
  const Buffer& segment = segments_[index];
  // Many values that share one large segment would multiply it.
  if (!allowed_bytes_) {
    allowed_bytes_ = 0;
    for (const Buffer& each : segments_) *allowed_bytes_ += each.size();
  }
  if (segment.size() > *allowed_bytes_) {
    throw BadValue(Code::kCorrupt, "segments are used more than once");
  }
  *allowed_bytes_ -= segment.size();
  return segment.span();
}

std::string kind_of(schema::Value::Reader value) {
  switch (value.which()) {
    case schema::Value::NONE:
      return "none";
    case schema::Value::BOOLEAN:
      return "bool";
    case schema::Value::INT64:
      return "int64 " + std::to_string(value.getInt64());
    case schema::Value::UINT64:
      return "uint64 " + std::to_string(value.getUint64());
    case schema::Value::FLOAT64:
      return "float64";
    case schema::Value::TEXT:
      return "string";
    case schema::Value::TENSOR:
      return "tensor";
    case schema::Value::LIST:
      return "list";
    case schema::Value::MAP:
      return "map";
    case schema::Value::RECORD:
      return "struct";
    case schema::Value::ARRAY:
      return "array";
    case schema::Value::BULK:
      return "bulk array";
    case schema::Value::HANDLE:
      return "handle";
  }
  return "unknown kind " + std::to_string(static_cast<int>(value.which()));
}

void throw_mismatch(std::string_view expected, schema::Value::Reader got) {
  throw BadValue(Code::kInvalidArgument,
                 "expected " + std::string(expected) + ", got " + kind_of(got));
}

}  // namespace farspan
