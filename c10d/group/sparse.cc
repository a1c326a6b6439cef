#include <farspan/c10d/group/sparse.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>

#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>
#include <farspan/c10d/streams/host_copy.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/c10d/streams/unrecorded.h>

namespace farspan::dist {
namespace {

using Use = TensorBlock::Use;

// A sparse tensor as the ranks exchange it, in the processor's memory. One of a device is copied
// there behind what the caller's current stream had been given, and back on that stream.
//
// Threading: a value; its tensor is the operation's meanwhile.
class SparseBlock {
 public:
  explicit SparseBlock(const Tensor& tensor) : tensor_(tensor) {
    if (tensor.is_cpu()) {
      own_ = tensor.coalesce();
      return;
    }
    keep_device_order(tensor.device().type());
    stream_ = current_stream_of(tensor.device());
    indices_ = std::make_shared<const HostCopy>(tensor._indices(), true);
    values_ = std::make_shared<const HostCopy>(tensor._values(), true);
  }

  bool needs_begin() const noexcept { return stream_.has_value(); }
  // Before own().
  //   throws  Error kTimeout
  void begin(Deadline deadline) const {
    indices_->wait(deadline);
    values_->wait(deadline);
  }
  // Coalesced.
  Tensor own() const {
    if (!stream_) return own_;
    const auto options = tensor_.options().device(at::kCPU);
    return at::_sparse_coo_tensor_unsafe(indices_->tensor(), values_->tensor(), tensor_.sizes(),
                                         options)
        .coalesce();
  }
  void finish(const Tensor& sum) const {
    const Unrecorded writing(tensor_);
    if (!stream_) {
      Tensor(tensor_).copy_(sum);
      return;
    }
    const c10::StreamGuard guard(*stream_);
    const Tensor indices = there(sum._indices()), values = there(sum._values());
    Tensor(tensor_).copy_(at::_sparse_coo_tensor_unsafe(indices, values, sum.sizes(),
                                                        tensor_.options(), /*is_coalesced=*/true));
  }

 private:
  Tensor there(const Tensor& here) const {
    const Tensor on_device = at::empty(here.sizes(), here.options().device(tensor_.device()));
    const HostCopy copy(on_device, false);
    copy.tensor().copy_(here);
    copy.write_back(on_device);
    return on_device;
  }

  Tensor tensor_;  // the user's
  Tensor own_;     // of the processor
  std::optional<c10::Stream> stream_;
  std::shared_ptr<const HostCopy> indices_, values_;
};

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
  if (!tensor.is_cpu() && !at::accelerator::isAccelerator(tensor.device().type())) {
    start.refuse("a sparse tensor on " + tensor.device().str(), "use .cpu()");
  }
  const at::NoGradGuard no_grad;
  // Backends have it from the processor's memory.
  const Tensor none = at::empty({0}, tensor.options().layout(c10::kStrided).device(at::kCPU));
  start.tensor(none, "the tensor").sparse(tensor.sizes(), tensor.sparse_dim());
  start.reduction(options.op);
  const auto ranks = static_cast<size_t>(start.size());
  const auto block = start.use(SparseBlock(tensor));
  return start.plan(
      options, std::function<void(Backend&, const Call&)>([block, ranks](Backend& backend,
                                                                         const Call& call) {
        const at::NoGradGuard unrecorded;
        const Tensor own = block.own();
        const Tensor count = at::full({1}, own._nnz(), at::kLong);
        std::vector<int64_t> rows;
        for (const Tensor& one :
             all_gather_rows(backend, call, count, std::vector<int64_t>(ranks, 1))) {
          rows.push_back(one.item<int64_t>());
        }
        // Indices are [dimensions, elements]; the elements must come first to be gathered.
        const auto indices = all_gather_rows(backend, call, own._indices().t().contiguous(), rows);
        const auto values = all_gather_rows(backend, call, own._values(), rows);
        block.finish(sum_in_order(own, indices, values));
      }));
}

}  // namespace farspan::dist
