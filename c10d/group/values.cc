#include <farspan/c10d/group/values.h>

#include <ATen/ATen.h>

#include <farspan/c10d/group/start.h>

namespace farspan::dist::detail {
namespace {

Group group_of(const CollectiveOptions& options, const char* called) {
  return group_or_default(options.group, called);
}

at::Tensor room(int64_t bytes) { return at::empty({bytes}, at::kByte); }
at::Tensor number(int64_t value) { return at::full({1}, value, at::kLong); }

}  // namespace

bool is_rank(int global_rank, const char* called, const CollectiveOptions& options) {
  return group_of(options, called)->own_global_rank() == global_rank;
}

int group_rank(int global_rank, const CollectiveOptions& options) {
  return group_or_default(options.group, {})->group_rank(global_rank);
}

std::string value_of(int rank, const CollectiveOptions& options) {
  return "the value of " + group_or_default(options.group, {})->backend().name_of(rank);
}

void refuse_value(Error error, const char* called, const CollectiveOptions& options) {
  throw error.operation(std::string(called) + " in " + group_of(options, called)->label())
      .advice("use one type on all ranks");
}

std::vector<at::Tensor> all_gather_bytes(const at::Tensor& own, const CollectiveOptions& options) {
  const at::Tensor sizes = at::empty({group_of(options, "all_gather_value")->size()}, at::kLong);
  all_gather_into_tensor(sizes, number(own.numel()), options);
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; rank < sizes.numel(); ++rank) {
    all.push_back(room(sizes[rank].item<int64_t>()));
  }
  all_gather(all, own, options);
  return all;
}

// In those with a root, `Start` refuses what is wrong here before anything is sent: afterwards the
// others would be in the first of two calls already.

// A gather's parts are all of one size: that of the largest.
std::vector<at::Tensor> gather_bytes(const at::Tensor& own, int dst,
                                     const CollectiveOptions& options) {
  const Start start = Start(Op::kGather, options.group, "gather_value").root(dst);
  const at::Tensor largest = number(own.numel());
  all_reduce(largest, {.op = ReduceOp::kMax, .group = options.group, .timeout = options.timeout});
  const int64_t bytes = largest.item<int64_t>();
  const at::Tensor padded = at::zeros({bytes}, at::kByte);
  padded.narrow(0, 0, own.numel()).copy_(own);
  std::vector<at::Tensor> all;
  for (int rank = 0; start.is_root() && rank < start.size(); ++rank) all.push_back(room(bytes));
  gather(padded, all, dst, options);
  return all;
}

at::Tensor broadcast_bytes(const at::Tensor& own, int src, const CollectiveOptions& options) {
  const bool is_source =
      Start(Op::kBroadcast, options.group, "broadcast_value").root(src).is_root();
  const at::Tensor size = number(is_source ? own.numel() : 0);
  broadcast(size, src, options);
  const at::Tensor bytes = is_source ? own : room(size.item<int64_t>());
  broadcast(bytes, src, options);
  return bytes;
}

at::Tensor scatter_bytes(const std::vector<at::Tensor>& own, int src,
                         const CollectiveOptions& options) {
  const Start start = Start(Op::kScatter, options.group, "scatter_value").root(src);
  if (start.is_root() && own.size() != static_cast<size_t>(start.size())) {
    start.refuse("there are " + std::to_string(own.size()) + " values, and the group has " +
                     std::to_string(start.size()) + " ranks",
                 "give one for each rank");
  }
  if (!start.is_root() && !own.empty()) {
    start.refuse("values are for rank " + std::to_string(src) + " to give only");
  }
  int64_t bytes = 0;
  for (const at::Tensor& one : own) bytes = std::max(bytes, one.numel());
  const at::Tensor size = number(bytes);
  broadcast(size, src, options);
  bytes = size.item<int64_t>();
  std::vector<at::Tensor> padded;
  for (const at::Tensor& one : own) {
    padded.push_back(at::zeros({bytes}, at::kByte));
    padded.back().narrow(0, 0, one.numel()).copy_(one);
  }
  const at::Tensor mine = room(bytes);
  scatter(mine, padded, src, options);
  return mine;
}

}  // namespace farspan::dist::detail
