#include <farspan/c10d/ddp/power_sgd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <farspan/c10d/ddp/thin_matrices.h>

namespace farspan::dist {

using at::Tensor;

namespace {

constexpr int64_t kGrain = 1 << 15;  // multiplications that are worth a thread

// One gradient of a bucket that is compressed.
struct Matrix {
  Tensor gradient;  // [n, m], in the bucket
  Tensor p;         // [n, rank], a part of Part::ps
  Tensor q;         // [m, rank], a part of Part::qs
};

// What is kept for one bucket.
struct Part {
  Tensor error;  // [elements]; undefined: none yet
  Tensor ps, qs;
  std::vector<Matrix> matrices;
  std::vector<Tensor> others;  // gradients that travel in full, in the bucket
  Tensor rest;                 // the same, one after the other
  Tensor of;                   // the bucket: another one has other parts
};

// Both decide the result, so no rank may round otherwise: BLAS and LAPACK do.
void orthogonalize(const Tensor& matrix) {
  AT_DISPATCH_FLOATING_TYPES(matrix.scalar_type(), "orthogonalize", [&] {
    dist::orthogonalize(matrix.data_ptr<scalar_t>(), matrix.size(0), matrix.size(1));
  });
}

// product [n, m] = p [n, r] times q [m, r]'
void multiply(const Tensor& p, const Tensor& q, const Tensor& product) {
  const int64_t n = p.size(0), r = p.size(1), m = q.size(0);
  const Tensor rows = q.t().contiguous();
  AT_DISPATCH_FLOATING_TYPES(product.scalar_type(), "multiply", [&] {
    const auto *const left = p.const_data_ptr<scalar_t>(), *const right =
                                                               rows.const_data_ptr<scalar_t>();
    auto* const to = product.data_ptr<scalar_t>();
    at::parallel_for(0, n, std::max<int64_t>(1, kGrain / (m * r)), [&](int64_t i, int64_t end) {
      multiply_thin(left + i * r, right, to + i * m, end - i, r, m);
    });
  });
}

bool is_worth_it(const Tensor& gradient, const PowerSgdOptions& options) {
  if (gradient.dim() < 2 || gradient.numel() == 0) return false;
  const int64_t n = gradient.size(0), m = gradient.numel() / n;
  if (std::min(n, m) < options.rank) return false;
  return static_cast<double>((n + m) * options.rank) * options.min_compression_rate <
         static_cast<double>(n * m);
}

}  // namespace

struct PowerSgdHook::Memory {
  explicit Memory(const PowerSgdOptions& with)
      : options(with), generator(at::detail::createCPUGenerator(with.seed)) {}

  void lay_out(Part& part, const GradBucket& bucket);

  const PowerSgdOptions options;
  at::Generator generator;  // the same numbers on all ranks, which use it alike
  std::map<size_t, Part> parts;
  uint64_t iteration = 0;
  Traffic traffic;
};

void PowerSgdHook::Memory::lay_out(Part& part, const GradBucket& bucket) {
  part = {};
  part.of = bucket.buffer();
  const auto type = bucket.buffer().options();
  int64_t rows = 0, columns = 0, rest = 0;
  std::vector<Tensor> compressed;
  for (const Tensor& gradient : bucket.gradients()) {
    // A matrix of a gradient that lies in another order would be a copy.
    if (gradient.is_contiguous() && is_worth_it(gradient, options)) {
      compressed.push_back(gradient.view({gradient.size(0), -1}));
      rows += compressed.back().size(0);
      columns += compressed.back().size(1);
    } else {
      part.others.push_back(gradient);
      rest += gradient.numel();
    }
  }
  part.ps = at::empty({rows * options.rank}, type);
  part.qs = at::randn({columns * options.rank}, generator, type);
  part.rest = at::empty({rest}, type);
  int64_t p = 0, q = 0;
  const auto cut = [this](const Tensor& from, int64_t& offset, int64_t lines) {
    const Tensor piece = from.narrow(0, offset, lines * options.rank).view({lines, options.rank});
    offset += lines * options.rank;
    return piece;
  };
  for (Tensor& matrix : compressed) {
    const Tensor its_p = cut(part.ps, p, matrix.size(0)), its_q = cut(part.qs, q, matrix.size(1));
    part.matrices.push_back({std::move(matrix), its_p, its_q});
  }
}

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options)
    : memory_(std::make_shared<Memory>(options)) {
  if (options.rank < 1 || options.start_iteration < 2) {
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(options.rank) +
                                            ", start_iteration " +
                                            std::to_string(options.start_iteration))
        .operation("PowerSgdHook")
        .advice("give a rank of 1 or more, and a start of 2 or more");
  }
}

PowerSgdHook::Traffic PowerSgdHook::traffic() const { return memory_->traffic; }

BucketResult PowerSgdHook::operator()(GradBucket& bucket) {
  if (!bucket.buffer().is_cpu()) {
    throw Error(Code::kInvalidArgument, "PowerSgdHook works on the CPU, and the gradients are on " +
                                            bucket.buffer().device().str())
        .advice("use fp16_compress_hook, bf16_compress_hook or no hook");
  }
  Memory& memory = *memory_;
  const uint64_t iteration = bucket.is_last() ? memory.iteration++ : memory.iteration;
  const auto type = bucket.buffer().scalar_type();
  if (iteration < memory.options.start_iteration || (type != at::kFloat && type != at::kDouble)) {
    return all_reduce_hook(bucket);
  }
  const at::NoGradGuard no_grad;
  Part& part = memory.parts[bucket.index()];
  const Tensor& buffer = bucket.buffer();
  if (!part.of.is_same(buffer)) memory.lay_out(part, bucket);
  if (memory.options.error_feedback) {
    if (part.error.defined()) Tensor(buffer).add_(part.error);
    part.error = buffer.clone();
  }
  if (!memory.options.warm_start) part.qs.normal_(0, 1, memory.generator);
  for (const Matrix& one : part.matrices) {
    orthogonalize(one.q);
    at::mm_out(const_cast<Tensor&>(one.p), one.gradient, one.q);
  }
  int64_t offset = 0;
  for (const Tensor& one : part.others) {
    part.rest.narrow(0, offset, one.numel()).copy_(one.reshape({-1}));
    offset += one.numel();
  }
  memory.traffic.elements += static_cast<uint64_t>(buffer.numel());
  memory.traffic.sent +=
      static_cast<uint64_t>(part.ps.numel() + part.qs.numel() + part.rest.numel());
  BucketResult rest = start_average(bucket, part.rest), ps = start_average(bucket, part.ps);
  return [bucket, shared = memory_, &part, rest = std::move(rest), ps = std::move(ps)] {
    const at::NoGradGuard no_gradients;
    rest();
    ps();
    for (const Matrix& one : part.matrices) {
      orthogonalize(one.p);
      at::mm_out(const_cast<Tensor&>(one.q), one.gradient.t(), one.p);
    }
    start_average(bucket, part.qs)();
    for (const Matrix& one : part.matrices) {
      multiply(one.p, one.q, one.gradient);
    }
    int64_t done = 0;
    for (const Tensor& one : part.others) {
      Tensor(one).copy_(part.rest.narrow(0, done, one.numel()).view(one.sizes()));
      done += one.numel();
    }
    if (shared->options.error_feedback) {
      // What travelled in full has lost nothing.
      for (const Tensor& one : part.others) {
        part.error.narrow(0, one.storage_offset(), one.numel()).zero_();
      }
      for (const Matrix& one : part.matrices) {
        Tensor its = part.error.narrow(0, one.gradient.storage_offset(), one.gradient.numel());
        its.sub_(one.gradient.view({-1}));
      }
    }
    return bucket.buffer();
  };
}

}  // namespace farspan::dist
