// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// MetaBuilder and MetaReader: one Cap'n Proto message, in one segment, without heap when it is
// small. Knows nothing of tensors.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan {

// What describes the values of one message may take so much; their bulk bytes do not count.
inline constexpr size_t kMaxMetaBytes = size_t{16} << 20;

// Lists, maps and structs may lie in each other so deep.
inline constexpr int kMaxValueDepth = 64;

// Builds one message.
//
// Threading: used and destroyed by the thread that made it; several may live at once.
class MetaBuilder {
 public:
  MetaBuilder();
  ~MetaBuilder();
  MetaBuilder(const MetaBuilder&) = delete;
  MetaBuilder& operator=(const MetaBuilder&) = delete;

  template <class Schema>
  typename Schema::Builder init_root() {
    return builder_.initRoot<Schema>();
  }

  // The message: whole words, 8-byte aligned; valid while this object lives.
  //   throws  Error kInvalidArgument: more than kMaxMetaBytes
  std::span<const std::byte> finish();

 private:
  // The thread's zeroed scratch block, or one from the heap when that is in use.
  class Lease {
   public:
    Lease();
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    kj::ArrayPtr<capnp::word> words() const noexcept { return words_; }

   private:
    kj::ArrayPtr<capnp::word> words_;
    std::unique_ptr<uint64_t[]> own_;
  };

  Lease lease_;
  capnp::MallocMessageBuilder builder_;
  std::unique_ptr<capnp::MallocMessageBuilder> flat_;  // when it took several segments
};

// Reads one message, in place. The bytes may come from anywhere: reading them wrong throws, within
// bounded time and memory.
//
// Lifetime: the bytes must outlive it and every reader taken from it.
class MetaReader {
 public:
  //   throws  Error kCorrupt: empty, not aligned to 8, or not whole words
  explicit MetaReader(std::span<const std::byte> bytes);

  // Use it, and what comes from it, inside guard_read().
  template <class Schema>
  typename Schema::Reader root() {
    return reader_.getRoot<Schema>();
  }

 private:
  kj::ArrayPtr<const capnp::word> segment_;
  capnp::SegmentArrayMessageReader reader_;
};

namespace detail {
[[noreturn]] void throw_unreadable(const kj::Exception& failure);
[[noreturn]] void throw_unwritable(const kj::Exception& failure);
}  // namespace detail

// Runs `fn`, which reads from messages; what Cap'n Proto finds wrong becomes Error kCorrupt.
template <class Fn>
decltype(auto) guard_read(Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const kj::Exception& failure) {
    detail::throw_unreadable(failure);
  }
}

// Runs `fn`, which builds a message; what is too large for one becomes Error kInvalidArgument.
template <class Fn>
decltype(auto) guard_write(Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const kj::Exception& failure) {
    detail::throw_unwritable(failure);
  }
}

}  // namespace farspan
