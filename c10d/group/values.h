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
bool is_rank(int global_rank, const CollectiveOptions& options);
}  // namespace detail

// Every rank's value, by rank.
template <class T>
std::vector<T> all_gather_value(const T& value, const CollectiveOptions& options = {}) {
  std::vector<T> all;
  for (const auto& bytes :
       detail::all_gather_bytes(pack_value(value, "all_gather_value"), options)) {
    all.push_back(unpack_value<T>(bytes, "all_gather_value"));
  }
  return all;
}

// The same at rank `dst`; nothing on the others.
template <class T>
std::vector<T> gather_value(const T& value, int dst, const CollectiveOptions& options = {}) {
  std::vector<T> all;
  for (const auto& bytes : detail::gather_bytes(pack_value(value, "gather_value"), dst, options)) {
    all.push_back(unpack_value<T>(bytes, "gather_value"));
  }
  return all;
}

// `value` becomes that of rank `src`.
template <class T>
void broadcast_value(T& value, int src, const CollectiveOptions& options = {}) {
  const bool is_source = detail::is_rank(src, options);
  const at::Tensor bytes = detail::broadcast_bytes(
      is_source ? pack_value(value, "broadcast_value") : at::Tensor(), src, options);
  if (!is_source) value = unpack_value<T>(bytes, "broadcast_value");
}

// The value that rank `src` has for this rank; it gives one for each, the others an empty vector.
//   throws  Error kInvalidArgument: another number of values; nobody is told, and the group can be
//           used on
template <class T>
T scatter_value(const std::vector<T>& values, int src, const CollectiveOptions& options = {}) {
  std::vector<at::Tensor> packed;
  for (const T& value : values) packed.push_back(pack_value(value, "scatter_value"));
  return unpack_value<T>(detail::scatter_bytes(packed, src, options), "scatter_value");
}

}  // namespace farspan::dist
