// A message as another process would receive it: all its bytes copied, nothing shared.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/values/codec.h>
#include <farspan/c10d/values/tensor_codec.h>

namespace farspan::testing {

struct Message {
  Buffer meta;
  std::vector<Buffer> segments;
};

// Memory as a memory pool gives it: 64-byte aligned, exactly as large as the bytes.
inline Buffer aligned_copy(std::span<const std::byte> bytes) {
  static constexpr std::align_val_t kAlignment{64};
  auto* data = static_cast<std::byte*>(::operator new(bytes.size(), kAlignment));
  if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  return Buffer(data, bytes.size(), std::shared_ptr<void>(data, [](void* allocated) {
                  ::operator delete(allocated, kAlignment);
                }));
}

template <class... T>
Message to_message(const T&... values) {
  std::vector<Buffer> segments;
  Writer writer(segments);
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  [[maybe_unused]] auto list = payload.initValues(sizeof...(T));
  unsigned i = 0;
  (write_value(list[i++], values, writer, "value"), ...);
  write_tensors(payload, writer);
  Message message{aligned_copy(meta.finish()), {}};
  for (const Buffer& segment : segments) message.segments.push_back(aligned_copy(segment.span()));
  return message;
}

template <class T>
T from_message(const Message& message, unsigned index = 0) {
  MetaReader meta(message.meta.span());
  auto payload = guard_read([&] { return meta.root<schema::Payload>(); });
  const TensorList tensors = read_tensors(payload, message.segments);
  Reader reader({tensors.data(), tensors.size()}, message.segments);
  return guard_read([&] {
    const auto values = payload.getValues();
    if (index >= values.size()) throw Error(Code::kCorrupt, "fewer values than expected");
    return read_value<T>(values[index], reader, "value");
  });
}

template <class T>
T round_trip(const T& value) {
  return from_message<T>(to_message(value));
}

}  // namespace farspan::testing
