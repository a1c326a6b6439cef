// Collectives in which ranks have a tensor for each other: all_gather, gather, scatter,
// reduce_scatter, all_to_all.
#include <farspan/c10d/group/collectives.h>

#include <ATen/ATen.h>

#include <numeric>

#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {
namespace {

using Use = TensorBlock::Use;

// Memory that is read must not be written before: `in` is copied where it shares some with `out`,
// but for the place of this rank's own part.
TensorBlock apart(Start& start, const TensorBlock& in, const TensorBlocks& out, size_t self) {
  std::vector<Block> own(out.blocks().size());
  if (!own.empty()) own[self] = in.block();
  return overlap(own, out.blocks(), in.element_size()) ? start.use(in.moved()) : in;
}
TensorBlocks apart(Start& start, const TensorBlocks& in, const TensorBlock& out, size_t self) {
  std::vector<Block> own(in.blocks().size());
  if (!own.empty()) own[self] = out.block();
  return overlap(in.blocks(), own, out.element_size()) ? start.use(in.moved()) : in;
}
TensorBlocks apart(Start& start, const TensorBlocks& in, const TensorBlocks& out,
                   size_t element_size) {
  return overlap(in.blocks(), out.blocks(), element_size) ? start.use(in.moved()) : in;
}

auto plan_all_gather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                     const CollectiveOptions& options) {
  Start start(Op::kAllGather, options.group);
  start.tensor(tensor, "the tensor").list(tensor_list, "tensor_list").shapes_of(tensor_list);
  start.same_count(tensor, tensor_list[start.rank()], "the tensor and its place in tensor_list");
  const auto out = start.hold_list(tensor_list, Use::kWrite);
  const TensorBlock in =
      apart(start, start.hold<TensorBlock>(tensor, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    backend.all_gather(call, in.block(), out.blocks());
    out.finish();
  });
}

auto plan_all_gather_into_tensor(const Tensor& output, const Tensor& input,
                                 const CollectiveOptions& options) {
  Start start(Op::kAllGather, options.group, "all_gather_into_tensor");
  start.tensor(input, "input").also(output, "output");
  const auto out =
      start.hold<TensorBlocks>(output, start.equal_parts(output, input, "output"), Use::kWrite);
  const TensorBlock in =
      apart(start, start.hold<TensorBlock>(input, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    backend.all_gather(call, in.block(), out.blocks());
    out.finish();
  });
}

auto plan_gather(const Tensor& tensor, const std::vector<Tensor>& gather_list, int dst,
                 const CollectiveOptions& options) {
  Start start(Op::kGather, options.group);
  start.tensor(tensor, "the tensor").root(dst);
  if (start.is_root()) {
    start.list(gather_list, "gather_list");
    for (const Tensor& one : gather_list) start.same_count(tensor, one, "entries of gather_list");
  } else if (!gather_list.empty()) {
    start.refuse("gather_list is for rank " + std::to_string(dst) + " only");
  }
  const auto out = start.hold<TensorBlocks>(gather_list, Use::kWrite);
  const TensorBlock in =
      apart(start, start.hold<TensorBlock>(tensor, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    backend.gather(call, in.block(), out.blocks());
    out.finish();
  });
}

auto plan_scatter(const Tensor& tensor, const std::vector<Tensor>& scatter_list, int src,
                  const CollectiveOptions& options) {
  Start start(Op::kScatter, options.group);
  start.tensor(tensor, "the tensor").root(src);
  if (start.is_root()) {
    start.list(scatter_list, "scatter_list");
    for (const Tensor& one : scatter_list) start.same_count(tensor, one, "entries of scatter_list");
  } else if (!scatter_list.empty()) {
    start.refuse("scatter_list is for rank " + std::to_string(src) + " only");
  }
  const auto out = start.hold<TensorBlock>(tensor, Use::kWrite);
  const TensorBlocks in =
      apart(start, start.hold<TensorBlocks>(scatter_list, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    backend.scatter(call, in.blocks(), out.block());
    out.finish();
  });
}

auto plan_reduce_scatter(const Tensor& output, const std::vector<Tensor>& input_list,
                         const ReduceOptions& options) {
  Start start(Op::kReduceScatter, options.group);
  start.tensor(output, "output").reduction(options.op).list(input_list, "input_list");
  start.shapes_of(input_list);
  start.same_count(output, input_list[start.rank()], "output and its place in input_list");
  const auto out = start.hold<TensorBlock>(output, Use::kWrite);
  const TensorBlocks in = apart(start, start.hold_list(input_list, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlocks own = scaled ? in.scaled(call.factor) : in;
    backend.reduce_scatter(call, own.blocks(), out.block());
    out.finish();
  });
}

auto plan_reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                                const ReduceOptions& options) {
  Start start(Op::kReduceScatter, options.group, "reduce_scatter_tensor");
  start.tensor(output, "output").reduction(options.op).also(input, "input");
  const auto out = start.hold<TensorBlock>(output, Use::kWrite);
  const auto counts = start.equal_parts(input, output, "input");
  const TensorBlocks in =
      apart(start, start.hold<TensorBlocks>(input, counts, Use::kRead), out, start.rank());
  return start.plan(options, [in, out](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlocks own = scaled ? in.scaled(call.factor) : in;
    backend.reduce_scatter(call, own.blocks(), out.block());
    out.finish();
  });
}

auto plan_all_to_all(Start start, TensorBlocks out, TensorBlocks parts, size_t element_size,
                     const CollectiveOptions& options) {
  TensorBlocks in = apart(start, parts, out, element_size);
  // On a device what comes may be there before what goes has been read.
  bool is_in_place = false;
  for (size_t rank = 0; rank < in.blocks().size(); ++rank) {
    if (rank == start.rank() || in.blocks()[rank].count == 0) continue;
    is_in_place = is_in_place || in.blocks()[rank].data == out.blocks()[rank].data;
  }
  if (is_in_place && start.where() == TensorBlock::Where::kDevice) in = start.use(in.moved());
  return start.plan(options,
                    [out = std::move(out), in = std::move(in)](Backend& backend, const Call& call) {
                      backend.all_to_all(call, in.blocks(), out.blocks());
                      out.finish();
                    });
}

auto plan_all_to_all(const std::vector<Tensor>& output_list, const std::vector<Tensor>& input_list,
                     const CollectiveOptions& options) {
  Start start(Op::kAllToAll, options.group);
  if (input_list.empty()) start.refuse("input_list is empty", "give one for each rank");
  start.tensor(input_list.front(), "the first of input_list").list(input_list, "input_list");
  start.list(output_list, "output_list").own_sizes();
  const size_t self = start.rank();
  start.same_count(input_list[self], output_list[self], "this rank's own input and output");
  auto out = start.hold<TensorBlocks>(output_list, Use::kWrite);
  auto in = start.hold<TensorBlocks>(input_list, Use::kRead);
  return plan_all_to_all(std::move(start), std::move(out), std::move(in),
                         input_list.front().element_size(), options);
}

// How many elements each rank has of a tensor that is split by rows.
std::vector<size_t> split_counts(const Start& start, const Tensor& tensor,
                                 const std::vector<int64_t>& splits, const std::string& name) {
  const int64_t ranks = start.size(), rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  const auto width = static_cast<size_t>(rows == 0 ? 0 : tensor.numel() / rows);
  std::vector<int64_t> all = splits;
  if (all.empty()) {
    if (rows % ranks != 0) {
      start.refuse(
          name + " has " + std::to_string(rows) + " rows for " + std::to_string(ranks) + " ranks",
          "give the splits");
    }
    all.assign(static_cast<size_t>(ranks), rows / ranks);
  }
  if (all.size() != static_cast<size_t>(ranks)) {
    start.refuse(std::to_string(all.size()) + " splits of " + name + " for " +
                 std::to_string(ranks) + " ranks");
  }
  int64_t sum = 0;
  std::vector<size_t> counts;
  for (const int64_t split : all) {
    if (split < 0 || split > rows) {
      start.refuse("a split of " + name + " is " + std::to_string(split));
    }
    sum += split;
    counts.push_back(static_cast<size_t>(split) * width);
  }
  if (sum != rows) {
    start.refuse("the splits of " + name + " make " + std::to_string(sum) + " rows, and it has " +
                 std::to_string(rows));
  }
  return counts;
}

auto plan_all_to_all_single(const Tensor& output, const Tensor& input,
                            const std::vector<int64_t>& output_splits,
                            const std::vector<int64_t>& input_splits,
                            const CollectiveOptions& options) {
  Start start(Op::kAllToAll, options.group, "all_to_all_single");
  start.tensor(input, "input").also(output, "output").own_sizes();
  const auto sent = split_counts(start, input, input_splits, "input");
  const auto got = split_counts(start, output, output_splits, "output");
  if (sent[start.rank()] != got[start.rank()]) {
    start.refuse("this rank's own splits of input and output differ");
  }
  auto out = start.hold<TensorBlocks>(output, got, Use::kWrite);
  auto in = start.hold<TensorBlocks>(input, sent, Use::kRead);
  return plan_all_to_all(std::move(start), std::move(out), std::move(in), input.element_size(),
                         options);
}

}  // namespace

void all_gather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                const CollectiveOptions& options) {
  perform_now(plan_all_gather(tensor_list, tensor, options));
}
Work all_gather_async(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                      const CollectiveOptions& options) {
  return perform_async(plan_all_gather(tensor_list, tensor, options));
}

void all_gather_into_tensor(const Tensor& output, const Tensor& input,
                            const CollectiveOptions& options) {
  perform_now(plan_all_gather_into_tensor(output, input, options));
}
Work all_gather_into_tensor_async(const Tensor& output, const Tensor& input,
                                  const CollectiveOptions& options) {
  return perform_async(plan_all_gather_into_tensor(output, input, options));
}

void gather(const Tensor& tensor, const std::vector<Tensor>& gather_list, int dst,
            const CollectiveOptions& options) {
  perform_now(plan_gather(tensor, gather_list, dst, options));
}
Work gather_async(const Tensor& tensor, const std::vector<Tensor>& gather_list, int dst,
                  const CollectiveOptions& options) {
  return perform_async(plan_gather(tensor, gather_list, dst, options));
}

void scatter(const Tensor& tensor, const std::vector<Tensor>& scatter_list, int src,
             const CollectiveOptions& options) {
  perform_now(plan_scatter(tensor, scatter_list, src, options));
}
Work scatter_async(const Tensor& tensor, const std::vector<Tensor>& scatter_list, int src,
                   const CollectiveOptions& options) {
  return perform_async(plan_scatter(tensor, scatter_list, src, options));
}

void reduce_scatter(const Tensor& output, const std::vector<Tensor>& input_list,
                    const ReduceOptions& options) {
  perform_now(plan_reduce_scatter(output, input_list, options));
}
Work reduce_scatter_async(const Tensor& output, const std::vector<Tensor>& input_list,
                          const ReduceOptions& options) {
  return perform_async(plan_reduce_scatter(output, input_list, options));
}

void reduce_scatter_tensor(const Tensor& output, const Tensor& input,
                           const ReduceOptions& options) {
  perform_now(plan_reduce_scatter_tensor(output, input, options));
}
Work reduce_scatter_tensor_async(const Tensor& output, const Tensor& input,
                                 const ReduceOptions& options) {
  return perform_async(plan_reduce_scatter_tensor(output, input, options));
}

void all_to_all(const std::vector<Tensor>& output_list, const std::vector<Tensor>& input_list,
                const CollectiveOptions& options) {
  perform_now(plan_all_to_all(output_list, input_list, options));
}
Work all_to_all_async(const std::vector<Tensor>& output_list, const std::vector<Tensor>& input_list,
                      const CollectiveOptions& options) {
  return perform_async(plan_all_to_all(output_list, input_list, options));
}

void all_to_all_single(const Tensor& output, const Tensor& input,
                       const std::vector<int64_t>& output_splits,
                       const std::vector<int64_t>& input_splits, const CollectiveOptions& options) {
  perform_now(plan_all_to_all_single(output, input, output_splits, input_splits, options));
}
Work all_to_all_single_async(const Tensor& output, const Tensor& input,
                             const std::vector<int64_t>& output_splits,
                             const std::vector<int64_t>& input_splits,
                             const CollectiveOptions& options) {
  return perform_async(plan_all_to_all_single(output, input, output_splits, input_splits, options));
}

}  // namespace farspan::dist
