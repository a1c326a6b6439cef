#include <farspan/rpc/init/assembly.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <utility>

namespace farspan {
namespace {

constexpr std::array<std::string_view, 3> kSteps{"host", "worker", "ready"};
constexpr std::string_view kHeard = "heard";
constexpr Millis kHeardWithin{5000};  // some come later

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
    const char first = one.empty() ? '\0' : one[0];
    one.erase(0, 1);
    if (first == kValue) continue;
    leave("");
    if (first == kRefusal) {
      throw Error(Code::kUnavailable, one)
          .operation("init_rpc")
          .advice("mend that there, and start all of them again");
    }
    throw Error(Code::kCorrupt, "what another worker has written is of another version of farspan")
        .operation("init_rpc")
        .advice("build all workers with the same one");
  }
  steps_done_ = number + 1;
  is_over_ = false;
  return values;
}

void Assembly::refuse(const std::string& name, const Error& why) noexcept {
  if (std::exchange(is_over_, true) || steps_done_ == kSteps.size()) return;
  try {
    leave("worker '" + name + "' (rank " + std::to_string(rank_) +
          ") does not join: " + why.what());
  } catch (const std::bad_alloc&) {  // then they wait in vain
  }
}

// By a store with a limit of its own. What it throws is no news: it is gone, or others come later,
// or not at all.
//   refusal  empty: of another one
void Assembly::leave(const std::string& refusal) noexcept {
  if (world_size_ == 1) return;
  try {
    const auto store = store_.clone();
    store->set_timeout(kHeardWithin);
    store->set(key_of(kHeard, rank_), "");
    if (!refusal.empty()) store->set(key_of(kSteps[steps_done_], rank_), kRefusal + refusal);
    store->wait(keys_of(kHeard), kHeardWithin);
  } catch (const std::exception&) {
  }
}

}  // namespace farspan
