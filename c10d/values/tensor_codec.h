// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Tensors as descriptions (schema::TensorDesc, in the message) and segments (their bytes, beside
// it), and back.
//
// What travels: any tensor of the CPU or, where the scope knows it, of an accelerator, that is
// strided or sparse (COO, CSR, CSC, BSR, BSC), of any dtype but the quantized ones; undefined
// tensors; requires_grad. Views send only the bytes they see; a dense tensor keeps its strides
// (channels_last, say), any other arrives row-major; conjugate and negative views arrive resolved.
// What does not: names of dimensions, hooks, gradients, grad_fn.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/values/borrowed_tensors.h>
#include <farspan/c10d/values/value_io.h>

namespace farspan {

// What becomes of large tensors' bytes, which may still be read after write_tensors() returned.
enum class Bulk {
  kShare,         // the segment refers to the tensor's storage and keeps it alive
  kCopyIfShared,  // the same, unless somebody but the Writer can change it
};

// Describes the Writer's tensors in the payload and appends their bytes to its segments. Up to
// kMaxInlineBytes a segment has no owner: the tensors must stay alive and unchanged until the
// message was sent. Larger segments keep the storage alive; it must stay unchanged until they are
// released; `borrowed`, if any, hears which these are. Of a large tensor that nobody but the Writer
// has, the segment takes the storage over, and the Writer's is gone.
//   throws  Error kInvalidArgument: a tensor that does not travel, with the reason; for those of
//           accelerators also what DeviceTensors throws
void write_tensors(schema::Payload::Builder payload, Writer& writer, Bulk bulk = Bulk::kShare,
                   BorrowedTensors* borrowed = nullptr);

// Makes the tensors of a payload. Everything is checked against the segments received before a
// tensor is made of it. Large segments that are aligned to 64 bytes become the tensor's storage and
// are kept alive by it; the others are copied.
//   scope   for tensors that are to be on an accelerator; null: there must be none
//   throws  Error kCorrupt: a description that breaks the rules or does not fit its segment; what
//           DeviceTensors throws
TensorList read_tensors(schema::Payload::Reader payload, std::span<const Buffer> segments,
                        ValueScope* scope = nullptr);

}  // namespace farspan
