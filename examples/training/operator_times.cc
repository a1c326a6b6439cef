#include "training/operator_times.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string_view>

#include <ATen/record_function.h>

#include <farspan/c10d/base/mutex.h>

namespace training {
namespace {

double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// LibTorch's callbacks are plain functions: what they count is the process's.
struct Counted {
  farspan::Mutex mutex;
  bool counting FARSPAN_GUARDED_BY(mutex) = false;
  std::map<std::string, double> operators FARSPAN_GUARDED_BY(mutex);
};
Counted& counted() {
  static auto* const forever = new Counted;  // threads may outlive what is destroyed at exit
  return *forever;
}

// LibTorch ends on the same thread, exceptions included, every operator whose begin it told.
thread_local int depth = 0;  // of operators that called each other
thread_local double begun = 0;

// The engine calls what it does around a node of the graph, which may be one of ours, a function,
// too.
bool is_operator(const at::RecordFunction& function) {
  return !std::string_view(function.name()).starts_with("autograd::engine::");
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (is_operator(function) && depth++ == 0) begun = seconds(CLOCK_THREAD_CPUTIME_ID);
  return nullptr;
}

void end(const at::RecordFunction& function, at::ObserverContext*) {
  if (!is_operator(function) || --depth > 0) return;
  const double took = seconds(CLOCK_THREAD_CPUTIME_ID) - begun;
  constexpr std::string_view kOwn = "aten::";
  std::string_view name = function.name();
  if (name.starts_with(kOwn)) name.remove_prefix(kOwn.size());
  Counted& all = counted();
  const farspan::MutexLock lock(all.mutex);
  all.operators[std::string(name)] += took;
}

}  // namespace

double Profile::share() const {
  double sum = 0;
  for (const auto& [name, time] : operators) sum += time;
  return busy > 0 ? sum / busy : 0;
}

std::vector<std::pair<std::string, double>> Profile::largest(size_t count) const {
  std::vector<std::pair<std::string, double>> sorted(operators.begin(), operators.end());
  std::ranges::sort(sorted, std::greater(), &std::pair<std::string, double>::second);
  sorted.resize(std::min(count, sorted.size()));
  for (auto& [name, time] : sorted) time /= busy;
  return sorted;
}

Profile& Profile::operator+=(const Profile& other) {
  busy += other.busy;
  for (const auto& [name, time] : other.operators) operators[name] += time;
  return *this;
}

OperatorTimes::OperatorTimes() : begun_(seconds(CLOCK_PROCESS_CPUTIME_ID)) {
  {
    Counted& all = counted();
    const farspan::MutexLock lock(all.mutex);
    if (all.counting) throw std::logic_error("training::OperatorTimes: there is one already");
    all.counting = true;
    all.operators.clear();
  }
  callback_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}));
}

OperatorTimes::~OperatorTimes() {
  at::removeCallback(callback_);
  Counted& all = counted();
  const farspan::MutexLock lock(all.mutex);
  all.counting = false;
}

Profile OperatorTimes::so_far() const {
  Profile profile{.busy = seconds(CLOCK_PROCESS_CPUTIME_ID) - begun_, .operators = {}};
  Counted& all = counted();
  const farspan::MutexLock lock(all.mutex);
  profile.operators = all.operators;
  return profile;
}

}  // namespace training
