#include <farspan/c10d/ddp/reduction_progress.h>

#include <utility>

namespace farspan::dist {

ReductionProgress::ReductionProgress(BucketPlan plan, size_t parameters)
    : bucket_of_(parameters), counts_(parameters), expected_(parameters, 1) {
  arrived_.reserve(parameters);
  set_plan(std::move(plan));
}

void ReductionProgress::set_plan(BucketPlan plan) {
  plan_ = std::move(plan);
  for (size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    for (const size_t parameter : plan_[bucket]) bucket_of_[parameter] = bucket;
  }
  reset();
}

void ReductionProgress::reset() {
  missing_in_.resize(plan_.size());
  for (size_t bucket = 0; bucket < plan_.size(); ++bucket) {
    missing_in_[bucket] = plan_[bucket].size();
  }
  ready_.assign(bucket_of_.size(), false);
  counts_.assign(bucket_of_.size(), 0);
  arrived_.clear();
  left_ = bucket_of_.size();
  next_ = 0;
}

bool ReductionProgress::expect() {
  if (phase_ == Phase::kReducing) return false;
  if (phase_ != Phase::kExpecting) reset();
  phase_ = Phase::kExpecting;
  return true;
}

bool ReductionProgress::expect_local() {
  if (phase_ == Phase::kReducing) return false;
  phase_ = Phase::kLocal;
  return true;
}

bool ReductionProgress::begin() {
  if (phase_ != Phase::kExpecting) return false;
  phase_ = Phase::kReducing;
  for (size_t parameter = 0; !counting_ && parameter < expected_.size(); ++parameter) {
    if (expected_[parameter] == 0) absent(parameter);
  }
  return true;
}

ReductionProgress::Arrival ReductionProgress::arrive(size_t parameter) {
  if (phase_ == Phase::kReduced) return Arrival::kTooLate;
  if (phase_ != Phase::kReducing) return Arrival::kLocal;
  if (ready_[parameter]) return Arrival::kTwice;
  ++counts_[parameter];
  if (counting_) {
    if (counts_[parameter] == 1) arrived_.push_back(parameter);
    return Arrival::kEarly;
  }
  if (counts_[parameter] < expected_[parameter]) return Arrival::kEarly;
  arrived_.push_back(parameter);
  make_ready(parameter);
  return Arrival::kReady;
}

void ReductionProgress::absent(size_t parameter) {
  if (!ready_[parameter]) make_ready(parameter);
}

void ReductionProgress::make_ready(size_t parameter) {
  ready_[parameter] = true;
  --missing_in_[bucket_of_[parameter]];
  --left_;
}

std::optional<size_t> ReductionProgress::next_bucket() {
  if (next_ == plan_.size() || missing_in_[next_] > 0) return std::nullopt;
  return next_++;
}

std::vector<size_t> ReductionProgress::missing() const {
  std::vector<size_t> missing;
  for (size_t parameter = 0; parameter < ready_.size(); ++parameter) {
    if (!ready_[parameter]) missing.push_back(parameter);
  }
  return missing;
}

void ReductionProgress::finish() { phase_ = Phase::kReduced; }

void ReductionProgress::start_counting() { counting_ = true; }

void ReductionProgress::stop_counting() {
  counting_ = false;
  expected_ = counts_;
  for (size_t parameter = 0; parameter < ready_.size(); ++parameter) absent(parameter);
}

}  // namespace farspan::dist
