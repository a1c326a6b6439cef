// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Writer and Reader: what a Codec has besides the message: the tensors and segments that travel
// beside it, and the scope of the call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/values/message.h>
#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

class DeviceTensors;
using TensorList = c10::SmallVector<at::Tensor, 4>;

// Text and packed arrays of more bytes travel in a segment of their own.
inline constexpr size_t kMaxInlineBytes = size_t{16} << 10;

// Whatever a message belongs to, as far as the codecs of the rooms above need to know: a room
// derives from it, and its codecs find it again with dynamic_cast. Null: no call, a copy only.
class ValueScope {
 public:
  virtual ~ValueScope() = default;
  // Called when all arguments have been read, before the function runs on them. May block; what it
  // throws, an Error, fails the call.
  virtual void before_run() {}
  // For bytes that the message takes along in a copy: not initialised, at least 16-byte aligned.
  virtual Buffer allocate(size_t bytes) { return Buffer::allocate(bytes); }
  // For tensors of accelerators; null: they do not travel with this message.
  virtual DeviceTensors* device_tensors() { return nullptr; }
};

// What a codec throws: this value cannot be written, or is not what was expected. Whoever holds the
// message catches it and makes it an Error that names the function and the position.
class BadValue : public std::exception {
 public:
  BadValue(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  // Called on the way out of each list, map and struct: "[3]", ".weight".
  void prefix_path(std::string_view step) { path_.insert(0, step); }

  // "argument 2 of 'train', at [3].weight: expected tensor, got string"
  Error as_error(std::string_view where) const;

  const char* what() const noexcept override { return message_.c_str(); }

 private:
  Code code_;
  std::string path_, message_;
};

// Threading: one thread at a time. Lifetime: `segments` and `scope` outlive it.
class Writer {
 public:
  explicit Writer(std::vector<Buffer>& segments, ValueScope* scope = nullptr) noexcept
      : segments_(segments), scope_(scope) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Takes a tensor along; returns its index. The same one twice gets one index, as an aliased
  // argument would stay aliased in a local call.
  uint32_t add(const at::Tensor& tensor);

  // Copies bytes into a segment of their own; returns its index.
  uint32_t add_segment(std::span<const std::byte> bytes);

  // Those added, in order; an interceptor may replace them before write_tensors().
  TensorList& tensors() noexcept { return tensors_; }
  std::vector<Buffer>& segments() noexcept { return segments_; }
  ValueScope* scope() const noexcept { return scope_; }

  // Held by each list, map or struct while it writes its elements.
  //   throws  BadValue: more than kMaxValueDepth in each other
  class Nest {
   public:
    explicit Nest(Writer& writer);
    ~Nest() { --writer_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    Writer& writer_;
  };

 private:
  TensorList tensors_;
  std::vector<Buffer>& segments_;
  ValueScope* scope_;
  int depth_ = 0;
};

// Threading: one thread at a time. Lifetime: tensors, segments and scope outlive it.
class Reader {
 public:
  Reader(std::span<const at::Tensor> tensors, std::span<const Buffer> segments,
         ValueScope* scope = nullptr) noexcept
      : tensors_(tensors), segments_(segments), scope_(scope) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  //   throws  BadValue kCorrupt: there is no such tensor or segment, or segments are asked for
  //           so often that together they exceed what was received
  const at::Tensor& tensor(uint32_t index) const;
  std::span<const std::byte> segment(uint32_t index);

  ValueScope* scope() const noexcept { return scope_; }

 private:
  std::span<const at::Tensor> tensors_;
  std::span<const Buffer> segments_;
  ValueScope* scope_;
  std::optional<uint64_t> allowed_bytes_;  // of segments; from the first use on
};

// The kind of a value as it came: "int64", "text", "list", "unknown kind 31".
std::string kind_of(schema::Value::Reader value);

//   throws  BadValue: "expected list<int64>, got string"
[[noreturn]] void throw_mismatch(std::string_view expected, schema::Value::Reader got);

}  // namespace farspan
