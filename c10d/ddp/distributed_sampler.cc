#include <farspan/c10d/ddp/distributed_sampler.h>

#include <algorithm>
#include <numeric>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/serialize/archive.h>

namespace farspan::dist {

DistributedSampler::DistributedSampler(size_t examples, const DistributedSamplerOptions& options)
    : options_(options), examples_(examples), epoch_(std::make_shared<std::atomic<uint64_t>>(0)) {
  if (options_.replicas < 0 || options_.rank < 0) {
    const Group group = group_or_default(options_.group, "DistributedSampler");
    if (options_.rank < 0 && group->rank() < 0) {
      throw Error(Code::kInvalidArgument, "this process is not one of the group's ranks")
          .operation("DistributedSampler")
          .advice("make it where get_rank(group) is not -1, or say which rank's share it has");
    }
    if (options_.replicas < 0) options_.replicas = group->size();
    if (options_.rank < 0) options_.rank = group->rank();
  }
  if (options_.replicas < 1 || options_.rank < 0 || options_.rank >= options_.replicas) {
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(options_.rank) + " of " +
                                            std::to_string(options_.replicas) + " replicas")
        .operation("DistributedSampler")
        .advice("ranks are from 0 up to one less than the number of replicas");
  }
  options_.group.reset();
  reset();
}

size_t DistributedSampler::share_of(size_t examples) const noexcept {
  const auto replicas = static_cast<size_t>(options_.replicas);
  return options_.drop_last ? examples / replicas : (examples + replicas - 1) / replicas;
}

size_t DistributedSampler::begin() const noexcept {
  return resumed_ && resumed_->epoch == epoch() ? static_cast<size_t>(resumed_->taken) : 0;
}

void DistributedSampler::set_epoch(uint64_t epoch) noexcept { *epoch_ = epoch; }
uint64_t DistributedSampler::epoch() const noexcept { return *epoch_; }

std::vector<size_t> DistributedSampler::indices() const {
  std::vector<size_t> order(examples_);
  if (options_.shuffle) {
    const at::Generator generator = at::detail::createCPUGenerator(options_.seed + epoch());
    const at::Tensor shuffled = at::randperm(static_cast<int64_t>(examples_), generator, at::kLong);
    const auto* const first = shuffled.const_data_ptr<int64_t>();
    std::transform(first, first + examples_, order.begin(),
                   [](int64_t index) { return static_cast<size_t>(index); });
  } else {
    std::iota(order.begin(), order.end(), size_t{0});
  }
  const size_t first = begin() + static_cast<size_t>(options_.rank);
  const size_t share = share_of(examples_ - begin());
  std::vector<size_t> own;
  own.reserve(share);
  for (size_t turn = 0; turn < share; ++turn) {
    const size_t place = first + turn * static_cast<size_t>(options_.replicas);
    own.push_back(order[place % examples_]);  // beyond its end the order begins anew
  }
  return own;
}

void DistributedSampler::reset(std::optional<size_t> examples) {
  if (examples && *examples != examples_) {
    examples_ = *examples;
    resumed_.reset();
  }
  indices_ = indices();
  began_ = {epoch(), begin()};
  next_ = 0;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  if (left() == 0) {
    resumed_.reset();  // a program that knows no epochs begins with a whole one again
    return std::nullopt;
  }
  const size_t end = std::min(indices_.size(), next_ + batch_size);
  const auto first = indices_.begin();
  std::vector<size_t> batch(first + static_cast<std::ptrdiff_t>(next_),
                            first + static_cast<std::ptrdiff_t>(end));
  next_ = end;
  return batch;
}

DistributedSamplerState DistributedSampler::state() const noexcept {
  const uint64_t given = next_ * static_cast<uint64_t>(options_.replicas);
  return {began_.epoch, std::min<uint64_t>(began_.taken + given, examples_)};
}

void DistributedSampler::load_state(const DistributedSamplerState& state) {
  if (state.taken > examples_) {
    throw Error(Code::kInvalidArgument,
                std::to_string(state.taken) + " examples are taken of " + std::to_string(examples_))
        .operation("DistributedSampler")
        .advice("load what a sampler of the same data set has saved");
  }
  set_epoch(state.epoch);
  resumed_ = state;
  reset();
}

namespace {
// What decides on the order, and the state: names in an archive.
constexpr const char* kSeed = "seed";
constexpr const char* kShuffle = "shuffle";
constexpr const char* kExamples = "examples";
constexpr const char* kEpoch = "epoch";
constexpr const char* kTaken = "taken";

void write(torch::serialize::OutputArchive& archive, const char* name, uint64_t number) {
  archive.write(name, at::scalar_tensor(static_cast<int64_t>(number), at::kLong), true);
}

uint64_t read(torch::serialize::InputArchive& archive, const char* name) {
  at::Tensor number;
  archive.read(name, number, true);
  return static_cast<uint64_t>(number.item<int64_t>());
}

// An order that differs would give some examples twice, and others never.
void check_same(torch::serialize::InputArchive& archive, const char* name, uint64_t own) {
  const uint64_t saved = read(archive, name);
  if (saved == own) return;
  throw Error(Code::kInvalidArgument, std::string("saved with ") + name + " " +
                                          std::to_string(saved) + ", and this one has " +
                                          std::to_string(own))
      .operation("DistributedSampler")
      .advice("go on with the same data set, seed and shuffle, or from the beginning");
}
}  // namespace

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const DistributedSamplerState now = state();
  write(archive, kSeed, options_.seed);
  write(archive, kShuffle, options_.shuffle);
  write(archive, kExamples, examples_);
  write(archive, kEpoch, now.epoch);
  write(archive, kTaken, now.taken);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  check_same(archive, kSeed, options_.seed);
  check_same(archive, kShuffle, options_.shuffle);
  check_same(archive, kExamples, examples_);
  load_state({read(archive, kEpoch), read(archive, kTaken)});
}

}  // namespace farspan::dist
