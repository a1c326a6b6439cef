// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Communication hooks: how a bucket of gradients becomes the average of all ranks', in place of
// DDP's own all_reduce.
// Source: PyTorch's DDP communication hooks; where we differ: c10d/ddp/README.md.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <farspan/c10d/ddp/bucket.h>
#include <farspan/c10d/group/process_group.h>

namespace farspan::dist {

// One bucket in one iteration, as a hook gets it.
//
// Threading: used by the thread that runs the backward pass. Lifetime: until the hook's result has
//            been taken; tensors that are kept live on.
class GradBucket {
 public:
  GradBucket(const Bucket& bucket, size_t index, bool is_last, Group group, int divisor)
      : bucket_(bucket),
        index_(index),
        is_last_(is_last),
        group_(std::move(group)),
        divisor_(divisor) {}

  // Its place in the order of reduction, from 0. Buckets change once, after the first iteration.
  size_t index() const noexcept { return index_; }
  bool is_last() const noexcept { return is_last_; }
  // This rank's gradients one after the other, [elements]: not divided by anything.
  const at::Tensor& buffer() const noexcept { return bucket_.flat(); }
  // The same memory by parameter, [shape of the parameter] each, and the parameters.
  const std::vector<at::Tensor>& gradients() const noexcept { return bucket_.gradients(); }
  const std::vector<at::Tensor>& parameters() const noexcept { return bucket_.parameters(); }

  // To communicate on. DDP's own: nobody else uses it.
  const Group& group() const noexcept { return group_; }
  // By what a sum over all ranks is to be divided: their number, unless join() says otherwise.
  int divisor() const noexcept { return divisor_; }

 private:
  const Bucket& bucket_;
  const size_t index_;
  const bool is_last_;
  const Group group_;
  const int divisor_;
};

// Gives the averaged gradients, [elements of the bucket], of any dtype: DDP writes them back. It is
// called once, when they are needed at the end of the backward pass, by the thread that runs it; in
// the order of the buckets, the same on all ranks, so it may communicate, too.
using BucketResult = std::function<at::Tensor()>;

// Called as soon as a bucket is complete, in their order, in the middle of the backward pass: it
// should start what takes time with an _async function, and leave waiting to its result.
//   throws  what it throws comes out of backward(), as an Error kRemote where it is no Error;
//           DDP is of no use after that
using CommHook = std::function<BucketResult(GradBucket& bucket)>;

// Averages `tensor` over the ranks, in place: for use in hooks. In the background, but for the last
// bucket of the CPU: there the thread that asks for the result does it itself, and wakes no other.
BucketResult start_average(const GradBucket& bucket, at::Tensor tensor);

// What DDP does without a hook.
BucketResult all_reduce_hook(GradBucket& bucket);

// Sends halves of the bytes: float32 travels as float16 or bfloat16. The ranks' numbers are
// converted, added in float32, divided, and rounded once. Others than float32 and float64 travel
// as they are.
BucketResult fp16_compress_hook(GradBucket& bucket);
BucketResult bf16_compress_hook(GradBucket& bucket);

}  // namespace farspan::dist
