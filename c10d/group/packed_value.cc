#include <farspan/c10d/group/packed_value.h>

#include <ATen/ATen.h>

#include <cstring>
#include <string>
#include <vector>

#include <farspan/c10d/values/tensor_codec.h>

namespace farspan::dist::detail {
namespace {

// Words of 8 bytes: the bytes of the message, how many segments, the bytes of each; then the
// message and the segments, each from a multiple of kAlign on, as tensors want it.
constexpr size_t kAlign = 64;
constexpr size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Error corrupt(std::string_view what) {
  return Error(Code::kCorrupt, "what came as " + std::string(what) + " is no value");
}

}  // namespace

at::Tensor pack(const std::function<void(schema::Value::Builder, Writer&)>& write,
                std::string_view what) {
  std::vector<Buffer> segments;
  Writer writer(segments);
  MetaBuilder meta;
  std::span<const std::byte> message;
  try {
    guard_write([&] {
      auto payload = meta.init_root<schema::Payload>();
      write(payload.initValues(1)[0], writer);
      write_tensors(payload, writer);
    });
    message = meta.finish();
  } catch (const BadValue& bad) {
    throw bad.as_error(what);
  }
  std::vector<uint64_t> head = {message.size(), segments.size()};
  for (const Buffer& segment : segments) head.push_back(segment.size());
  size_t bytes = aligned(head.size() * sizeof(uint64_t)) + aligned(message.size());
  for (const Buffer& segment : segments) bytes += aligned(segment.size());
  at::Tensor packed = at::zeros({static_cast<int64_t>(bytes)}, at::kByte);
  auto* place = static_cast<std::byte*>(packed.data_ptr());
  const auto put = [&place](const void* from, size_t size) {
    if (size > 0) std::memcpy(place, from, size);
    place += aligned(size);
  };
  put(head.data(), head.size() * sizeof(uint64_t));
  put(message.data(), message.size());
  for (const Buffer& segment : segments) put(segment.data(), segment.size());
  return packed;
}

void unpack(const at::Tensor& bytes,
            const std::function<void(schema::Value::Reader, Reader&)>& read,
            std::string_view what) {
  // The segments hold on to the tensor: large tensors in them stay where they are.
  const auto owner = std::make_shared<at::Tensor>(bytes);
  const Buffer whole(static_cast<std::byte*>(bytes.data_ptr()), bytes.nbytes(), owner);
  size_t at = 0;
  const auto take = [&](uint64_t size) {
    if (size > whole.size() || at > whole.size() - size) throw corrupt(what);
    const Buffer part = whole.slice(at, size);
    at += aligned(size);
    return part;
  };
  const auto word = [&](size_t index) {
    uint64_t value = 0;
    if ((index + 1) * sizeof value > whole.size()) throw corrupt(what);
    std::memcpy(&value, whole.data() + index * sizeof value, sizeof value);
    return value;
  };
  const uint64_t message_bytes = word(0), count = word(1);
  if (count > whole.size() / sizeof(uint64_t)) throw corrupt(what);
  take((2 + count) * sizeof(uint64_t));
  const Buffer message = take(message_bytes);
  std::vector<Buffer> segments;
  for (uint64_t i = 0; i < count; ++i) segments.push_back(take(word(2 + i)));
  MetaReader meta(message.span());
  try {
    guard_read([&] {
      const auto payload = meta.root<schema::Payload>();
      const TensorList tensors = read_tensors(payload, segments);
      Reader reader(tensors, segments);
      if (payload.getValues().size() != 1) throw corrupt(what);
      read(payload.getValues()[0], reader);
    });
  } catch (const BadValue& bad) {
    throw bad.as_error(what);
  }
}

}  // namespace farspan::dist::detail
