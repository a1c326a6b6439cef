// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Collectives of C++ values: whatever has a Codec (c10d/values/codec.h): numbers, text, containers,
// user structs, and tensors of any shape in them. What PyTorch calls object collectives.
//
//   throws  Error, as collectives.h; kInvalidArgument also for values that do not travel, and where
//           ranks use different types
//   cost    two collectives: how large the values are, and the values
//
// Threading: see ProcessGroup.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/packed_value.h>

namespace farspan::dist {

namespace detail {
// Every rank gets all ranks' bytes, by rank; dst: only that one does, the others nothing.
std::vector<at::Tensor> all_gather_bytes(const at::Tensor& own, const CollectiveOptions& options);
std::vector<at::Tensor> gather_bytes(const at::Tensor& own, int dst,
                                     const CollectiveOptions& options);
// `own` counts at src only; of scatter it has one for each rank.
at::Tensor broadcast_bytes(const at::Tensor& own, int src, const CollectiveOptions& options);
at::Tensor scatter_bytes(const std::vector<at::Tensor>& own, int src,
                         const CollectiveOptions& options);
bool is_rank(int global_rank, const char* called, const CollectiveOptions& options);
// "the value of rank 1 (host:pid)", of a rank in the group.
std::string value_of(int rank, const CollectiveOptions& options);
int group_rank(int global_rank, const CollectiveOptions& options);
[[noreturn]] void refuse_value(Error error, const char* called, const CollectiveOptions& options);

// What a rank of the group has packed.
template <class T>
T unpack_from(int rank, const at::Tensor& bytes, const char* called,
              const CollectiveOptions& options) {
  try {
    return unpack_value<T>(bytes, value_of(rank, options));
  } catch (const Error& error) {
    refuse_value(error, called, options);
  }
}
template <class T>
std::vector<T> unpack_all(const std::vector<at::Tensor>& by_rank, const char* called,
                          const CollectiveOptions& options) {
  std::vector<T> all;
  for (const at::Tensor& bytes : by_rank) {
    all.push_back(unpack_from<T>(static_cast<int>(all.size()), bytes, called, options));
  }
  return all;
}
}  // namespace detail

// Every rank's value, by rank.
template <class T>
std::vector<T> all_gather_value(const T& value, const CollectiveOptions& options = {}) {
  constexpr const char* kCalled = "all_gather_value";
  const auto all = detail::all_gather_bytes(pack_value(value, kCalled), options);
  return detail::unpack_all<T>(all, kCalled, options);
}

// The same at rank `dst`; nothing on the others.
template <class T>
std::vector<T> gather_value(const T& value, int dst, const CollectiveOptions& options = {}) {
  constexpr const char* kCalled = "gather_value";
  const auto all = detail::gather_bytes(pack_value(value, kCalled), dst, options);
  return detail::unpack_all<T>(all, kCalled, options);
}

// `value` becomes that of rank `src`.
template <class T>
void broadcast_value(T& value, int src, const CollectiveOptions& options = {}) {
  constexpr const char* kCalled = "broadcast_value";
  const bool is_source = detail::is_rank(src, kCalled, options);
  const at::Tensor bytes =
      detail::broadcast_bytes(is_source ? pack_value(value, kCalled) : at::Tensor(), src, options);
  if (is_source) return;
  value = detail::unpack_from<T>(detail::group_rank(src, options), bytes, kCalled, options);
}

// The value that rank `src` has for this rank; it gives one for each, the others an empty vector.
//   throws  Error kInvalidArgument: another number of values; nobody is told, and the group can be
//           used on
template <class T>
T scatter_value(const std::vector<T>& values, int src, const CollectiveOptions& options = {}) {
  constexpr const char* kCalled = "scatter_value";
  std::vector<at::Tensor> packed;
  for (const T& value : values) packed.push_back(pack_value(value, kCalled));
  const at::Tensor bytes = detail::scatter_bytes(packed, src, options);
  return detail::unpack_from<T>(detail::group_rank(src, options), bytes, kCalled, options);
}

}  // namespace farspan::dist
