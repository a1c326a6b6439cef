// Collectives of many tensors at once: they travel as one, in memory of its own.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <utility>
#include <vector>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/start.h>
#include <farspan/c10d/group/tensor_block.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/c10d/streams/unrecorded.h>

namespace farspan::dist {
namespace {

using Tensors = std::vector<Tensor>;
using Use = TensorBlock::Use;

// They are joined there.
void on_one_device(const Start& start, const Tensors& tensors) {
  for (const Tensor& one : tensors) {
    if (one.device() == tensors.front().device()) continue;
    start.refuse("tensors on " + tensors.front().device().str() + " and on " + one.device().str(),
                 "give tensors of one device");
  }
}

Start start_of(Op op, const Group& group, const char* called, const Tensors& tensors,
               const char* name) {
  Start start(op, group, called);
  if (tensors.empty()) start.refuse(std::string(name) + " is empty");
  start.tensor(tensors.front(), "the first of " + std::string(name));
  for (const Tensor& one : tensors) start.also(one, "an entry of " + std::string(name));
  on_one_device(start, tensors);
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
  on_one_device(start, wholes);
  start.number_and_shapes_of(parts);
}

// What a call needs besides its tensors: made in its turn, of what they are then; those of devices
// by the caller, since it is his streams that have written them.
template <class Make>
auto in_turn(const Tensors& tensors, Make make) {
  using Made = decltype(make());
  if (tensors.front().is_cpu()) return std::function<Made()>(std::move(make));
  return std::function<Made()>([made = make()] { return made; });
}

// All of them, one after the other.
Tensor join(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Tensors rows;
  for (const Tensor& one : tensors) rows.push_back(copyable(one).reshape({-1}));
  return at::cat(rows);
}

// It is written by the calling thread's current stream, whoever lets go of it.
void use_here(const Tensor& tensor) {
  if (!tensor.is_cpu()) record_use(tensor, current_stream_of(tensor.device()));
}

// Writes to each its part of what join() would give.
void split(const Tensor& joined, const Tensors& tensors) {
  int64_t begin = 0;
  for (const Tensor& one : tensors) {
    // The thread that performs it is not always the one that has called it.
    const Unrecorded writing(one);
    use_here(one);
    copyable(one).copy_(joined.narrow(0, begin, one.numel()).view(one.sizes()));
    begin += one.numel();
  }
}

// A row for each rank, with its part of each of the tensors.
Tensor join_rows(const Tensors& wholes, int64_t ranks) {
  const at::NoGradGuard no_grad;
  Tensors parts;
  for (const Tensor& whole : wholes) {
    parts.push_back(copyable(whole).reshape({ranks, whole.numel() / ranks}));
  }
  return at::cat(parts, 1);
}

void split_rows(const Tensor& rows, const Tensors& wholes) {
  int64_t begin = 0;
  for (const Tensor& whole : wholes) {
    const int64_t width = whole.numel() / rows.size(0);
    const Unrecorded writing(whole);
    use_here(whole);
    copyable(whole).copy_(rows.narrow(1, begin, width).reshape(whole.sizes()));
    begin += width;
  }
}

// Of rows, those of each rank.
std::vector<Block> blocks_of(const TensorBlock& rows, int64_t ranks) {
  std::vector<Block> blocks;
  const Block all = rows.block();
  const size_t width = all.count / static_cast<size_t>(ranks);
  for (size_t row = 0; row < static_cast<size_t>(ranks); ++row) {
    blocks.push_back({all.data + row * width * rows.element_size(), width});
  }
  return blocks;
}

// What goes in, and what comes out.
struct InAndOut {
  TensorBlock in, out;
};

auto plan_all_reduce_coalesced(const Tensors& tensors, const ReduceOptions& options) {
  Start start = start_of(Op::kAllReduce, options.group, "all_reduce_coalesced", tensors, "tensors");
  start.reduction(options.op).number_and_shapes_of(tensors);
  start.writes(tensors);
  const auto joined = in_turn(tensors, [tensors, where = start.where()] {
    return TensorBlock(join(tensors), Use::kReadWrite, where);
  });
  return start.plan(options, [tensors, joined](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const TensorBlock all = joined();
    all.begin(call.deadline);
    const TensorBlock data = scaled ? all.scaled(call.factor) : all;
    backend.all_reduce(call, data.block());
    split(data.finished(), tensors);
  });
}

auto plan_all_gather_coalesced(const Tensors& outputs, const Tensors& inputs,
                               const CollectiveOptions& options) {
  Start start =
      start_of(Op::kAllGather, options.group, "all_gather_into_tensor_coalesced", inputs, "inputs");
  pair(start, outputs, "outputs", inputs, "inputs");
  start.writes(outputs);
  const int64_t ranks = start.size();
  const auto made = in_turn(inputs, [inputs, ranks, where = start.where()] {
    const Tensor own = join(inputs), rows = at::empty({ranks, own.numel()}, own.options());
    return InAndOut{TensorBlock(own, Use::kRead, where), TensorBlock(rows, Use::kWrite, where)};
  });
  return start.plan(options, [outputs, made, ranks](Backend& backend, const Call& call) {
    const InAndOut rows = made();
    rows.in.begin(call.deadline);
    rows.out.begin(call.deadline);
    backend.all_gather(call, rows.in.block(), blocks_of(rows.out, ranks));
    split_rows(rows.out.finished(), outputs);
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
  const auto made = in_turn(inputs, [inputs, ranks, where = start.where()] {
    const Tensor rows = join_rows(inputs, ranks);
    const Tensor own = at::empty({rows.size(1)}, rows.options());
    return InAndOut{TensorBlock(rows, Use::kRead, where), TensorBlock(own, Use::kWrite, where)};
  });
  return start.plan(options, [outputs, made, ranks](Backend& backend, const Call& call) {
    const bool scaled = call.reduce() == ReduceOp::kPremulSum;
    const InAndOut rows = made();
    rows.in.begin(call.deadline);
    rows.out.begin(call.deadline);
    const TensorBlock in = scaled ? rows.in.scaled(call.factor) : rows.in;
    backend.reduce_scatter(call, blocks_of(in, ranks), rows.out.block());
    split(rows.out.finished(), outputs);
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
