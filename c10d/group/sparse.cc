#include <farspan/c10d/group/sparse.h>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <optional>

#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/c10d/streams/unrecorded.h>

namespace farspan::dist {
namespace {

using Use = TensorBlock::Use;

// One all_gather inside of the operation. `shape` is what its tensors have on every rank but for
// the first dimension.
std::vector<Tensor> all_gather_rows(Backend& backend, Call call, const Tensor& tensor,
                                    const std::vector<int64_t>& rows) {
  std::vector<Tensor> all;
  std::vector<int64_t> shape = tensor.sizes().vec();
  for (const int64_t count : rows) {
    shape[0] = count;
    all.push_back(at::empty(shape, tensor.options()));
  }
  call.type = dtype_of(tensor);
  const TensorBlock in(tensor, Use::kRead);
  const TensorBlocks out(all, Use::kWrite);
  backend.all_gather(call, in.block(), out.blocks());
  return all;
}

// A number for each element that grows with its indices: [elements].
Tensor place_of(const Tensor& indices, at::IntArrayRef shape) {
  Tensor places = at::zeros({indices.size(0)}, indices.options());
  for (int64_t dim = 0; dim < indices.size(1); ++dim) {
    places.mul_(shape[static_cast<size_t>(dim)]).add_(indices.select(1, dim));
  }
  return places;
}

// Of all ranks, whose own indices differ. coalesce() would add in an order that depends on the
// processor: it sorts without keeping equal ones as they were.
//   indices  of each rank, [elements, dimensions]
Tensor sum_in_order(const Tensor& like, const std::vector<Tensor>& indices,
                    const std::vector<Tensor>& values) {
  const Tensor all = at::cat(indices);
  const auto [unique, rows, counts] =
      at::_unique2(place_of(all, like.sizes()), /*sorted=*/true, /*return_inverse=*/true);
  std::vector<int64_t> shape = values.front().sizes().vec();
  shape[0] = unique.numel();
  const auto wide = at::toOpMathType(like.scalar_type());
  const Tensor sums = at::zeros(shape, values.front().options().dtype(wide));
  int64_t begin = 0;
  for (const Tensor& one : values) {
    const Tensor own = rows.narrow(0, begin, one.size(0));
    sums.index_copy_(0, own, sums.index_select(0, own).add_(one));
    begin += one.size(0);
  }
  const Tensor at_sums = at::empty({unique.numel(), all.size(1)}, all.options());
  at_sums.index_copy_(0, rows, all);
  return at::_sparse_coo_tensor_unsafe(at_sums.t().contiguous(), sums.to(like.scalar_type()),
                                       like.sizes(), like.options(),
                                       /*is_coalesced=*/true);
}

}  // namespace

Plan<std::function<void(Backend&, const Call&)>> plan_sparse_all_reduce(
    const Tensor& tensor, const ReduceOptions& options) {
  Start start(Op::kSparseAllReduce, options.group);
  if (options.op.kind != ReduceOp::kSum) {
    start.refuse(std::string(name_of(options.op.kind)) + " of a sparse tensor",
                 "only SUM has a meaning for it: use .to_dense()");
  }
  const at::NoGradGuard no_grad;
  // Memory of devices is of the caller's stream.
  std::optional<c10::Stream> stream;
  if (!tensor.is_cpu()) {
    keep_device_order(tensor.device().type());
    stream = current_stream_of(tensor.device());
  }
  const Tensor own = (tensor.is_cpu() ? tensor : tensor.cpu()).coalesce();
  start.tensor(own._values(), "the tensor").sparse(tensor.sizes(), tensor.sparse_dim());
  start.reduction(options.op);
  const auto ranks = static_cast<size_t>(start.size());
  return start.plan(
      options, std::function<void(Backend&, const Call&)>([tensor, own, ranks, stream](
                                                              Backend& backend, const Call& call) {
        const Unrecorded writing(tensor);
        const c10::OptionalStreamGuard guard(stream);
        const Tensor count = at::full({1}, own._nnz(), at::kLong);
        std::vector<int64_t> rows;
        for (const Tensor& one :
             all_gather_rows(backend, call, count, std::vector<int64_t>(ranks, 1))) {
          rows.push_back(one.item<int64_t>());
        }
        // Indices are [dimensions, elements]; the elements must come first to be gathered.
        const auto indices = all_gather_rows(backend, call, own._indices().t().contiguous(), rows);
        const auto values = all_gather_rows(backend, call, own._values(), rows);
        Tensor(tensor).copy_(sum_in_order(own, indices, values));
      }));
}

}  // namespace farspan::dist
