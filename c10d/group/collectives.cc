// Collectives in which every rank has one tensor: broadcast, all_reduce, reduce, barrier.
#include <farspan/c10d/group/collectives.h>

#include <ATen/ATen.h>

#include <farspan/c10d/group/sparse.h>
#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {
namespace {

using Use = TensorBlock::Use;

auto plan_broadcast(const Tensor& tensor, int src, const CollectiveOptions& options) {
  Start start(Op::kBroadcast, options.group);
  start.tensor(tensor, "the tensor").root(src);
  const auto data = start.hold<TensorBlock>(tensor, start.is_root() ? Use::kRead : Use::kWrite);
  return start.plan(options, [data](Backend& backend, const Call& call) {
    backend.broadcast(call, data.block());
    data.finish();
  });
}

auto plan_all_reduce(const Tensor& tensor, const ReduceOptions& options) {
  Start start(Op::kAllReduce, options.group);
  start.tensor(tensor, "the tensor").reduction(options.op);
  const auto data = start.hold<TensorBlock>(tensor, Use::kReadWrite);
  return start.plan(options, [data](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlock own = scaled ? data.scaled(call.factor) : data;
    backend.all_reduce(call, own.block());
    own.finish();
  });
}

auto plan_reduce(const Tensor& tensor, int dst, const ReduceOptions& options) {
  Start start(Op::kReduce, options.group);
  start.tensor(tensor, "the tensor").reduction(options.op).root(dst);
  const auto data = start.hold<TensorBlock>(tensor, start.is_root() ? Use::kReadWrite : Use::kRead);
  return start.plan(options, [data](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlock own = scaled ? data.scaled(call.factor) : data;
    backend.reduce(call, own.block());
    own.finish();
  });
}

auto plan_barrier(const CollectiveOptions& options) {
  return Start(Op::kBarrier, options.group).plan(options, [](Backend& backend, const Call& call) {
    backend.barrier(call);
  });
}

}  // namespace

void broadcast(const Tensor& tensor, int src, const CollectiveOptions& options) {
  perform_now(plan_broadcast(tensor, src, options));
}
Work broadcast_async(const Tensor& tensor, int src, const CollectiveOptions& options) {
  return perform_async(plan_broadcast(tensor, src, options));
}

void all_reduce(const Tensor& tensor, const ReduceOptions& options) {
  if (tensor.is_sparse()) return perform_now(plan_sparse_all_reduce(tensor, options));
  perform_now(plan_all_reduce(tensor, options));
}
Work all_reduce_async(const Tensor& tensor, const ReduceOptions& options) {
  if (tensor.is_sparse()) return perform_async(plan_sparse_all_reduce(tensor, options));
  return perform_async(plan_all_reduce(tensor, options));
}

void reduce(const Tensor& tensor, int dst, const ReduceOptions& options) {
  perform_now(plan_reduce(tensor, dst, options));
}
Work reduce_async(const Tensor& tensor, int dst, const ReduceOptions& options) {
  return perform_async(plan_reduce(tensor, dst, options));
}

void barrier(const CollectiveOptions& options) { perform_now(plan_barrier(options)); }
Work barrier_async(const CollectiveOptions& options) {
  return perform_async(plan_barrier(options));
}

}  // namespace farspan::dist
