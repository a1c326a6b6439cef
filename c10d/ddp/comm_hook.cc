#include <farspan/c10d/ddp/comm_hook.h>

#include <ATen/ATen.h>

#include <farspan/c10d/group/collectives.h>

namespace farspan::dist {
namespace {

BucketResult compress(GradBucket& bucket, at::ScalarType type) {
  const at::ScalarType own = bucket.buffer().scalar_type();
  if (own != at::kFloat && own != at::kDouble) return all_reduce_hook(bucket);
  return start_average(bucket, bucket.buffer().to(type));
}

}  // namespace

BucketResult start_average(const GradBucket& bucket, at::Tensor tensor) {
  const bool by_all = bucket.divisor() == bucket.group()->size();
  ReduceOptions options;
  options.group = bucket.group();
  options.op = by_all ? ReduceOp::kAvg : ReduceOp::kSum;
  // Where the caller waits for the last one anyway, it performs that itself.
  const bool waits = bucket.is_last() && tensor.is_cpu();
  const Work work = waits ? Work() : all_reduce_async(tensor, options);
  return [work, tensor = std::move(tensor), options, by_all, divisor = bucket.divisor()] {
    if (work.valid()) {
      work.wait();
    } else {
      all_reduce(tensor, options);
    }
    if (!by_all) Tensor(tensor).div_(divisor);
    return tensor;
  };
}

BucketResult all_reduce_hook(GradBucket& bucket) { return start_average(bucket, bucket.buffer()); }

BucketResult fp16_compress_hook(GradBucket& bucket) { return compress(bucket, at::kHalf); }
BucketResult bf16_compress_hook(GradBucket& bucket) { return compress(bucket, at::kBFloat16); }

}  // namespace farspan::dist
