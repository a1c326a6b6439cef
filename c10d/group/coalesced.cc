// Collectives of many tensors at once: they travel as one, in memory of its own.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {
namespace {

using Tensors = std::vector<Tensor>;

Start start_of(Op op, const Group& group, const char* called, const Tensors& tensors,
               const char* name) {
  Start start(op, group, called);
  if (tensors.empty()) start.refuse(std::string(name) + " is empty");
  start.tensor(tensors.front(), "the first of " + std::string(name));
  for (const Tensor& one : tensors) start.also(one, "an entry of " + std::string(name));
  return start;
}

// Each of `wholes` has as many elements as all ranks' `parts` together.
void pair(Start& start, const Tensors& wholes, const char* whole_name, const Tensors& parts,
          const char* part_name) {
  if (wholes.size() != parts.size()) {
    start.refuse(std::to_string(wholes.size()) + " " + whole_name + " and " +
                 std::to_string(parts.size()) + " " + part_name);
  }
  for (size_t i = 0; i < wholes.size(); ++i) {
    start.also(wholes[i], "an entry of " + std::string(whole_name));
    start.equal_parts(wholes[i], parts[i], "an entry of " + std::string(whole_name));
  }
  start.number_and_shapes_of(parts);
}

// A row for each rank, with its part of each of the tensors.
Tensor rows_of(const Tensors& wholes, int64_t ranks, double factor) {
  const at::NoGradGuard no_grad;
  Tensors parts;
  for (const Tensor& whole : wholes) parts.push_back(whole.reshape({ranks, whole.numel() / ranks}));
  const Tensor rows = at::cat(parts, 1);
  return factor == 1 ? rows : times(rows, factor);
}

void write_rows(const Tensor& rows, const Tensors& wholes) {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const Tensor& whole : wholes) {
    const int64_t width = whole.numel() / rows.size(0);
    const c10::InferenceMode inference(whole.is_inference());
    Tensor(whole).copy_(rows.narrow(1, begin, width).reshape(whole.sizes()));
    begin += width;
  }
}

std::vector<Block> blocks_of(const Tensor& rows) {
  std::vector<Block> blocks;
  const auto width = static_cast<size_t>(rows.size(1));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    blocks.push_back({static_cast<std::byte*>(rows.data_ptr()) +
                          static_cast<size_t>(row) * width * rows.element_size(),
                      width});
  }
  return blocks;
}

auto plan_all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options) {
  Start start = start_of(Op::kAllReduce, options.group, "all_reduce_coalesced", tensors, "tensors");
  start.reduction(options.op).number_and_shapes_of(tensors);
  start.writes(tensors);
  return start.plan(options, [tensors](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlock joined = TensorBlock::joined(tensors);
    const TensorBlock data = scaled ? joined.scaled(call.factor) : joined;
    backend.all_reduce(call, data.block());
    data.split_into(tensors);
  });
}

auto plan_all_gather_coalesced(const Tensors& outputs, const Tensors& inputs,
                               const CollectiveOptions& options) {
  Start start =
      start_of(Op::kAllGather, options.group, "all_gather_into_tensor_coalesced", inputs, "inputs");
  pair(start, outputs, "outputs", inputs, "inputs");
  start.writes(outputs);
  const int64_t ranks = start.size();
  return start.plan(options, [outputs, inputs, ranks](Backend& backend, const Call& call) {
    const TensorBlock own = TensorBlock::joined(inputs);
    const auto width = static_cast<int64_t>(own.block().count);
    const Tensor rows = at::empty({ranks, width}, inputs.front().options());
    backend.all_gather(call, own.block(), blocks_of(rows));
    write_rows(rows, outputs);
  });
}

auto plan_reduce_scatter_coalesced(const Tensors& outputs, const Tensors& inputs,
                                   const ReduceOptions& options) {
  Start start = start_of(Op::kReduceScatter, options.group, "reduce_scatter_tensor_coalesced",
                         outputs, "outputs");
  start.reduction(options.op);
  pair(start, inputs, "inputs", outputs, "outputs");
  start.writes(outputs);
  const int64_t ranks = start.size();
  return start.plan(options, [outputs, inputs, ranks](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const Tensor rows = rows_of(inputs, ranks, scaled ? call.factor : 1);
    const TensorBlock own = TensorBlock::joined(outputs);
    backend.reduce_scatter(call, blocks_of(rows), own.block());
    own.split_into(outputs);
  });
}

}  // namespace

void all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options) {
  perform_now(plan_all_reduce_coalesced(tensors, options));
}
Work all_reduce_coalesced_async(const Tensors& tensors, const ReduceOptions& options) {
  return perform_async(plan_all_reduce_coalesced(tensors, options));
}

void all_gather_into_tensor_coalesced(const Tensors& outputs, const Tensors& inputs,
                                      const CollectiveOptions& options) {
  perform_now(plan_all_gather_coalesced(outputs, inputs, options));
}
Work all_gather_into_tensor_coalesced_async(const Tensors& outputs, const Tensors& inputs,
                                            const CollectiveOptions& options) {
  return perform_async(plan_all_gather_coalesced(outputs, inputs, options));
}

void reduce_scatter_tensor_coalesced(const Tensors& outputs, const Tensors& inputs,
                                     const ReduceOptions& options) {
  perform_now(plan_reduce_scatter_coalesced(outputs, inputs, options));
}
Work reduce_scatter_tensor_coalesced_async(const Tensors& outputs, const Tensors& inputs,
                                           const ReduceOptions& options) {
  return perform_async(plan_reduce_scatter_coalesced(outputs, inputs, options));
}

}  // namespace farspan::dist
