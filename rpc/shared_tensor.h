// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Tensors that can be handed over to other workers of this host instead of copied.
//
//   Tensor batch = farspan::empty_shared({64, 3, 1024, 1024}, torch::kUInt8);
//   decode_into(batch);
//   rpc_sync("trainer", train, std::move(batch));  // or, in a function: return batch;
//
// What changes hands is the memory: nobody here may have another tensor of the same storage (a view
// that is alive, what autograd has saved), or the bytes are copied as usual. The same happens for
// views, for memory that was itself handed over, for calls to the own worker and to other hosts,
// and where CrossMemoryAttach does not work. The memory comes back for the next such tensor when
// the last tensor over it is gone there. Route::bytes_handed_over says what came that way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <farspan/rpc/worker.h>

namespace farspan {

// A tensor that is not initialised, in shared memory of the current worker's, or `worker`'s; like
// torch::empty in all else. It takes one file descriptor as long as its memory is kept, which a
// while after it is gone it still is (counters().idle_shared_memory); below 64 KiB it is an
// ordinary tensor. It may outlive the worker.
//   options  dtype, requires_grad; the device must be the CPU, the layout strided
//   throws   Error kInvalidArgument: other options, a negative size, or no current worker;
//            kOverloaded: no descriptors or memory left
at::Tensor empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options = {});
at::Tensor empty_shared(Worker& worker, at::IntArrayRef sizes,
                        const at::TensorOptions& options = {});

}  // namespace farspan
