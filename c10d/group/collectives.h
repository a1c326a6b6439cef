// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Collectives: what all ranks of a group do together.
// Source: PyTorch's torch.distributed, whose names, order of arguments and meanings these are;
// where we differ: c10d/group/README.md.
//
// All ranks of a group call the same operations in the same order, with tensors of one type, and of
// sizes that fit. What does not fit is told to all of them, by name. Each returns when this rank's
// results are there; the ones that end in _async return at once, and go on in the background, in
// the order of the calls.
//
//   tensors  of any dtype that travels (no quantized ones), strided in any way;
//            all_reduce also takes sparse ones
//   ranks    src, dst: in the default group
//   throws   Error: kInvalidArgument (arguments that make no sense on this rank: nobody is told,
//   and
//            the group can be used on), kShapeMismatch (the ranks disagree: names them and how),
//            kTimeout (names who is waited for), kDisconnected (names who is gone), kCancelled,
//            kShutdown. After any but the first the group is of no use.
//   grads    none are recorded: the operations work on the tensors' memory
//
// Threading: see ProcessGroup.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/group/reduce_op.h>
#include <farspan/c10d/group/work.h>

namespace farspan::dist {

using at::Tensor;

struct CollectiveOptions {
  Group group = nullptr;               // null: the default group
  std::optional<Millis> timeout = {};  // absent: the group's; kNoTimeout: none
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  Group group = nullptr;
  std::optional<Millis> timeout = {};
};

// The tensor of rank `src` comes to all: [*] everywhere.
void broadcast(const Tensor& tensor, int src, const CollectiveOptions& options = {});
Work broadcast_async(const Tensor& tensor, int src, const CollectiveOptions& options = {});

// In place, on all ranks: [*]. A sparse tensor: SUM only; its indices may differ between ranks.
void all_reduce(const Tensor& tensor, const ReduceOptions& options = {});
Work all_reduce_async(const Tensor& tensor, const ReduceOptions& options = {});
// Several in one operation; all of one dtype, and dense.
void all_reduce_coalesced(const std::vector<Tensor>& tensors, const ReduceOptions& options = {});
Work all_reduce_coalesced_async(const std::vector<Tensor>& tensors,
                                const ReduceOptions& options = {});

// In place at rank `dst`; the other ranks' tensors stay as they are.
void reduce(const Tensor& tensor, int dst, const ReduceOptions& options = {});
Work reduce_async(const Tensor& tensor, int dst, const ReduceOptions& options = {});

// tensor_list[r] becomes rank r's `tensor`. Sizes may differ from rank to rank; every rank then
// gives the right ones in its list.
void all_gather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                const CollectiveOptions& options = {});
Work all_gather_async(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                      const CollectiveOptions& options = {});
// `output` holds the inputs one after the other, or stacked: as many elements as all of them.
void all_gather_into_tensor(const Tensor& output, const Tensor& input,
                            const CollectiveOptions& options = {});
Work all_gather_into_tensor_async(const Tensor& output, const Tensor& input,
                                  const CollectiveOptions& options = {});

// Several in one operation; all of one dtype, and each pair as above.
void all_gather_into_tensor_coalesced(const std::vector<Tensor>& outputs,
                                      const std::vector<Tensor>& inputs,
                                      const CollectiveOptions& options = {});
Work all_gather_into_tensor_coalesced_async(const std::vector<Tensor>& outputs,
                                            const std::vector<Tensor>& inputs,
                                            const CollectiveOptions& options = {});

// gather_list[r] becomes rank r's `tensor`, at rank `dst`; elsewhere the list is empty.
void gather(const Tensor& tensor, const std::vector<Tensor>& gather_list, int dst,
            const CollectiveOptions& options = {});
Work gather_async(const Tensor& tensor, const std::vector<Tensor>& gather_list, int dst,
                  const CollectiveOptions& options = {});

// `tensor` becomes scatter_list[r] of rank `src`, for r this rank; elsewhere the list is empty.
void scatter(const Tensor& tensor, const std::vector<Tensor>& scatter_list, int src,
             const CollectiveOptions& options = {});
Work scatter_async(const Tensor& tensor, const std::vector<Tensor>& scatter_list, int src,
                   const CollectiveOptions& options = {});

// `output` becomes the reduction of all ranks' input_list[r], for r this rank. Sizes may differ
// between the entries of the list, and are the same on all ranks.
void reduce_scatter(const Tensor& output, const std::vector<Tensor>& input_list,
                    const ReduceOptions& options = {});
Work reduce_scatter_async(const Tensor& output, const std::vector<Tensor>& input_list,
                          const ReduceOptions& options = {});
// `input` holds the entries one after the other, or stacked, all of one size.
void reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                           const ReduceOptions& options = {});
Work reduce_scatter_tensor_async(const Tensor& output, const Tensor& input,
                                 const ReduceOptions& options = {});

// Several in one operation; all of one dtype, and each pair as above.
void reduce_scatter_tensor_coalesced(const std::vector<Tensor>& outputs,
                                     const std::vector<Tensor>& inputs,
                                     const ReduceOptions& options = {});
Work reduce_scatter_tensor_coalesced_async(const std::vector<Tensor>& outputs,
                                           const std::vector<Tensor>& inputs,
                                           const ReduceOptions& options = {});

// output_list[r] becomes rank r's input_list[q], for q this rank. Sizes may differ.
void all_to_all(const std::vector<Tensor>& output_list, const std::vector<Tensor>& input_list,
                const CollectiveOptions& options = {});
Work all_to_all_async(const std::vector<Tensor>& output_list, const std::vector<Tensor>& input_list,
                      const CollectiveOptions& options = {});
// The same with the entries one after the other in the first dimension. Splits: rows for each rank;
// empty: equal.
void all_to_all_single(const Tensor& output, const Tensor& input,
                       const std::vector<int64_t>& output_splits = {},
                       const std::vector<int64_t>& input_splits = {},
                       const CollectiveOptions& options = {});
Work all_to_all_single_async(const Tensor& output, const Tensor& input,
                             const std::vector<int64_t>& output_splits = {},
                             const std::vector<int64_t>& input_splits = {},
                             const CollectiveOptions& options = {});

// Returns when all ranks have called it.
void barrier(const CollectiveOptions& options = {});
Work barrier_async(const CollectiveOptions& options = {});

}  // namespace farspan::dist
