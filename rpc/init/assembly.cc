#include <farspan/rpc/init/assembly.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace farspan {
namespace {

constexpr std::array<std::string_view, 3> kSteps{"host", "worker", "ready"};
constexpr std::string_view kHeard = "heard";
constexpr Millis kHeardWithin{1000};

// The first character of what is put down.
constexpr char kValue = '+', kRefusal = '-';

}  // namespace

Assembly::Assembly(dist::Store& store, int rank, int world_size, Deadline deadline)
    : store_(store), rank_(rank), world_size_(world_size), deadline_(deadline) {}

std::string Assembly::key_of(std::string_view step, int rank) {
  return std::string(step) + "/" + std::to_string(rank);
}

std::vector<std::string> Assembly::keys_of(std::string_view step) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank) keys.push_back(key_of(step, rank));
  return keys;
}

std::vector<std::string> Assembly::exchange(Step step, const std::string& value) {
  const auto number = static_cast<size_t>(step);
  const std::string_view name = kSteps[number];
  is_over_ = true;  // unless it goes well
  store_.set(key_of(name, rank_), kValue + value);
  const std::vector<std::string> keys = keys_of(name);
  store_.wait(keys, std::max(Millis(1), std::chrono::ceil<Millis>(deadline_.remaining())));
  std::vector<std::string> values = store_.multi_get(keys);
  for (std::string& one : values) {
    const bool refuses = one.starts_with(kRefusal);
    one.erase(0, 1);
    if (!refuses) continue;
    store_.set(key_of(kHeard, rank_), "");
    throw Error(Code::kUnavailable, one)
        .operation("init_rpc")
        .advice("mend that there, and start all of them again");
  }
  steps_done_ = number + 1;
  is_over_ = false;
  return values;
}

void Assembly::refuse(const std::string& name, const Error& why) noexcept {
  if (std::exchange(is_over_, true) || world_size_ == 1) return;
  try {
    const std::string text = kRefusal + ("worker '" + name + "' (rank " + std::to_string(rank_)) +
                             ") does not join: " + why.what();
    store_.set(key_of(kHeard, rank_), "");
    for (size_t step = steps_done_; step < kSteps.size(); ++step) {
      store_.set(key_of(kSteps[step], rank_), text);
    }
    store_.wait(keys_of(kHeard), kHeardWithin);
  } catch (const std::exception&) {
    // The store is gone, or others come later, or not at all.
  }
}

}  // namespace farspan
