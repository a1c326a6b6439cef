// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Buffer: bytes together with whatever keeps them alive.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace farspan {

// A counted view of bytes. Copies share the bytes; the last one releases their owner.
//
// Threading: a value; the count is atomic, the bytes are not synchronised.
// Lifetime:  the owner (a heap block, a pooled block, a tensor's storage) lives as long as any
// copy.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(std::byte* data, size_t size, std::shared_ptr<void> owner) noexcept
      : data_(data), size_(size), owner_(std::move(owner)) {}

  // Uninitialised bytes, 16-byte aligned.
  static Buffer allocate(size_t size) {
    std::shared_ptr<std::byte[]> block = std::make_shared_for_overwrite<std::byte[]>(size);
    std::byte* data = block.get();
    return Buffer(data, size, std::move(block));
  }
  static Buffer copy_of(std::span<const std::byte> bytes) {
    Buffer buffer = allocate(bytes.size());
    if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
    return buffer;
  }
  // Bytes that somebody else keeps alive for longer than this view.
  static Buffer borrowed(const void* data, size_t size) noexcept {
    return Buffer(static_cast<std::byte*>(const_cast<void*>(data)), size, nullptr);
  }

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::span<std::byte> span() const noexcept { return {data_, size_}; }
  const std::shared_ptr<void>& owner() const noexcept { return owner_; }

  // A part of it, with the same owner. offset + size <= this->size().
  Buffer slice(size_t offset, size_t size) const noexcept {
    return Buffer(data_ + offset, size, owner_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<void> owner_;
};

}  // namespace farspan
