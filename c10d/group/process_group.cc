#include <farspan/c10d/group/process_group.h>

#include <algorithm>
#include <set>
#include <utility>

#include <farspan/c10d/base/fnv1a.h>
#include <farspan/c10d/base/log.h>

namespace farspan::dist {
namespace {

constexpr std::chrono::seconds kToFinish{30};

Mutex default_mutex;
Group the_default_group FARSPAN_GUARDED_BY(default_mutex);
thread_local Group the_threads_group;

std::string join(const std::vector<int>& numbers) {
  std::string all;
  for (const int number : numbers) all += (all.empty() ? "" : ", ") + std::to_string(number);
  return all;
}

// Names must not grow with the group.
uint64_t hash_of(const std::vector<int>& numbers) noexcept {
  Fnv1a hash;
  for (const int number : numbers) hash.add(static_cast<uint32_t>(number));
  return hash.value();
}

// What can be done about a collective that has failed.
const char* advice_for(Code code) noexcept {
  switch (code) {
    case Code::kShapeMismatch:
      return "call the same operations, in the same order and of the same sizes, on all ranks";
    default:
      return "";
  }
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 8;
  if (ranks.size() == 1) return "rank " + join(ranks);
  if (ranks.size() <= kNamed) return "ranks " + join(ranks);
  return std::to_string(ranks.size()) + " ranks (" + join({ranks.begin(), ranks.begin() + kNamed}) +
         " and others)";
}

// "group 2 of ranks 0, 1": the second that was made of them, here out of the default group.
std::string label_of(const ProcessGroup& parent, const std::vector<int>& ranks, uint64_t number) {
  const std::string label = "group " + std::to_string(number) + " of " + name_ranks(ranks);
  return parent.label() == kDefaultGroup ? label : label + " in " + parent.label();
}

void check_ranks(const std::vector<int>& ranks, const ProcessGroup& parent) {
  const auto refuse = [](const std::string& what) {
    throw Error(Code::kInvalidArgument, what)
        .operation("new_group")
        .advice("name ranks of the default group, or of the group that it is made out of, once");
  };
  if (ranks.empty()) refuse("no rank was named");
  std::set<int> seen;
  for (const int rank : ranks) {
    if (std::find(parent.ranks().begin(), parent.ranks().end(), rank) == parent.ranks().end()) {
      refuse("rank " + std::to_string(rank) + " is not one of " + join(parent.ranks()));
    }
    if (!seen.insert(rank).second) refuse("rank " + std::to_string(rank) + " was named twice");
  }
}

}  // namespace

ProcessGroup::ProcessGroup(GroupSpec spec, int own_global_rank, std::shared_ptr<Backend> backend,
                           Millis timeout)
    : spec_(std::move(spec)),
      own_rank_(own_global_rank),
      backend_(std::move(backend)),
      timeout_(timeout) {}

ProcessGroup::~ProcessGroup() {
  shutdown();
  if (!made_.is_here()) {  // its lines are the parent's
    static auto& kept = *new std::vector<std::shared_ptr<Backend>>;
    kept.push_back(std::move(backend_));
  }
}

void ProcessGroup::shutdown() noexcept {
  if (!backend_ || !made_.is_here()) return;
  bool has_some_to_finish = true;
  {
    MutexLock lock(mutex_);
    has_some_to_finish = !failure_ || failed_since_ > 0;
  }
  if (has_some_to_finish) backend_->finish(Deadline::after(kToFinish));
  bool was_of_use = false;
  {
    MutexLock lock(mutex_);
    was_of_use = !failure_;
    const Error left =
        Error(Code::kShutdown, "this rank has left the group")
            .advice("after destroy_process_group(): init_process_group() and new_group()");
    note_failure_locked(failure_.value_or(left), 0);
  }
  if (was_of_use) warn_of_unfinished();
  backend_->leave();
  lane_->stop();
}

// What its caller may believe to be done.
void ProcessGroup::warn_of_unfinished() const {
  int others = -1;
  std::string first;
  const auto records = history_.records();
  for (const OperationRecord& record : records) {
    using State = OperationRecord::State;
    if (record.state != State::kQueued && record.state != State::kRunning) continue;
    if (++others == 0) first = describe(record);
  }
  if (others < 0) return;
  if (others > 0) first += ", and " + std::to_string(others) + " more";
  log(LogLevel::kWarning, "c10d/group",
      "rank " + std::to_string(own_rank_) + " leaves " + label() +
          " while operations are under way, which end by that: " + first +
          "; wait() for them first");
}

std::string_view ProcessGroup::backend_name() const noexcept {
  return backend_ ? backend_->name() : "none";
}

int ProcessGroup::group_rank(int global_rank) const {
  const auto found = std::find(spec_.ranks.begin(), spec_.ranks.end(), global_rank);
  if (found != spec_.ranks.end()) return static_cast<int>(found - spec_.ranks.begin());
  throw Error(Code::kInvalidArgument, "rank " + std::to_string(global_rank) +
                                          " is not one of the group's: " + join(spec_.ranks))
      .advice("ranks count in the default group");
}

int ProcessGroup::global_rank(int group_rank) const {
  if (group_rank >= 0 && group_rank < size()) return spec_.ranks[static_cast<size_t>(group_rank)];
  throw Error(Code::kInvalidArgument,
              "rank " + std::to_string(group_rank) + " of a group of " + std::to_string(size()));
}

void ProcessGroup::abort(const std::string& why) noexcept {
  // Where the group has failed before, that says more to ranks that have not heard of it yet.
  Error error = Error(Code::kCancelled, why).worker("rank " + std::to_string(rank()));
  {
    MutexLock lock(mutex_);
    error = failure_.value_or(error);
    note_failure_locked(error, 0);
  }
  if (backend_) backend_->abort(error, 0);
}

std::optional<Error> ProcessGroup::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

std::string ProcessGroup::dump() const {
  std::string text = label() + " ('" + name() + "'), rank " + std::to_string(rank()) + " of " +
                     std::to_string(size()) + ", " + std::string(backend_name()) + "\n";
  const auto records = history_.records();
  const TimePoint now = Clock::now();  // after the last of them
  for (const OperationRecord& record : records) text += "  " + describe(record, now) + "\n";
  return text;
}

Backend& ProcessGroup::backend() {
  if (backend_) return *backend_;
  throw Error(Code::kInvalidArgument,
              "this process is not one of the group's ranks: " + join(spec_.ranks))
      .advice("call it where get_rank(group) is not -1");
}

Deadline ProcessGroup::deadline(std::optional<Millis> timeout, TimePoint from) const noexcept {
  const Millis limit = timeout.value_or(this->timeout());
  using Seconds = std::chrono::duration<double>;  // in which hours::max() does not overflow
  if (limit <= kNoTimeout || Seconds(limit) >= Seconds(TimePoint::max() - from)) {
    return Deadline::never();
  }
  return Deadline(from + limit);
}

uint64_t ProcessGroup::count_groups_of(const std::vector<int>& ranks) {
  MutexLock lock(mutex_);
  return ++groups_made_[ranks];
}

std::shared_ptr<const DevicePlace> ProcessGroup::place(
    int device, const std::function<std::shared_ptr<const DevicePlace>()>& make) {
  MutexLock lock(mutex_);
  std::shared_ptr<const DevicePlace>& place = places_[device];
  if (!place) place = make();
  return place;
}

void ProcessGroup::check_usable(const Signature& signature) const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const Error first = *failure();
  if (first.code() == Code::kShutdown) {
    throw Error(first).operation(describe(signature) + " of " + label());
  }
  throw Error(first.code(), label() + " failed before: " + first.what())
      .operation(describe(signature))
      .advice("make a new_group() of the ranks that go on");
}

void ProcessGroup::check_turn(const Signature& signature) const {
  if (!failed_.load(std::memory_order_acquire)) return;
  {
    MutexLock lock(mutex_);
    if (signature.sequence < failed_since_) return;
  }
  check_usable(signature);
}

void ProcessGroup::note_failure_locked(const Error& why, uint64_t since) {
  if (failure_ && failed_since_ <= since) return;
  failure_ = why;
  failed_since_ = since;
  failed_ = true;
}

Error ProcessGroup::fail(Error error, const Signature& signature,
                         Clock::duration elapsed) noexcept {
  error.operation(describe(signature) + ", call " + std::to_string(signature.sequence) + " of " +
                  label());
  error.elapsed(elapsed);
  if (error.advice().empty()) error.advice(advice_for(error.code()));
  if (error.code() == Code::kTimeout && signature.sequence == 1 && label() != kDefaultGroup) {
    error.advice("do all its ranks make the same groups, in the same order? Else see what it does");
  }
  bool is_news = true;
  {
    MutexLock lock(mutex_);
    is_news = !failure_ || failed_since_ > signature.sequence;
    note_failure_locked(error, signature.sequence);
  }
  // Others cannot know of what went wrong on this side of the backend.
  backend_->abort(error, signature.sequence);
  if (is_news && error.code() == Code::kTimeout) {
    std::string last = dump();
    last.pop_back();  // the log ends the line
    log(LogLevel::kWarning, "c10d/group", last);
  }
  return error;
}

Error ProcessGroup::missed_turn(uint64_t record) const {
  using State = OperationRecord::State;
  std::optional<OperationRecord> before;
  for (const OperationRecord& other : history_.records()) {
    if (other.signature.op == Op::kSend || other.signature.op == Op::kRecv) continue;
    const bool is_next = !before && other.id < record && other.state == State::kQueued;
    if (is_next || other.state == State::kRunning) before = other;
  }
  return Error(Code::kTimeout, backend_->name_of(rank()) + " gave up: its turn had not come" +
                                   (before ? ", behind " + describe(*before) : ""))
      .worker(backend_->name_of(rank()))
      .advice("give it more time, or wait for what is before it in the group");
}

Group default_group() {
  if (the_threads_group) return the_threads_group;
  MutexLock lock(default_mutex);
  if (the_default_group) return the_default_group;
  throw Error(Code::kInvalidArgument, "there is no default group")
      .advice("call init_process_group() first");
}

Group group_or_default(const Group& group, std::string_view operation) {
  if (group) return group;
  try {
    return default_group();
  } catch (Error& error) {
    throw error.operation(std::string(operation));
  }
}

bool is_initialized() noexcept {
  if (the_threads_group) return true;
  MutexLock lock(default_mutex);
  return the_default_group != nullptr;
}

Group set_default_group(Group group) {
  MutexLock lock(default_mutex);
  return std::exchange(the_default_group, std::move(group));
}

CurrentGroup::CurrentGroup(Group group)
    : before_(std::exchange(the_threads_group, std::move(group))) {}
CurrentGroup::~CurrentGroup() { the_threads_group = before_; }

int get_rank(const Group& group) { return group_or_default(group, "get_rank")->rank(); }
int get_world_size(const Group& group) { return group_or_default(group, "get_world_size")->size(); }

Group new_group(const std::vector<int>& ranks, std::optional<Millis> timeout) {
  return new_group_of(group_or_default(nullptr, "new_group"), ranks, timeout);
}

Group new_group_of(const Group& parent, const std::vector<int>& ranks,
                   std::optional<Millis> timeout, const std::string& label) {
  check_ranks(ranks, *parent);
  GroupSpec spec;
  spec.ranks = ranks;
  const auto self = std::find(ranks.begin(), ranks.end(), parent->own_global_rank());
  spec.rank = self == ranks.end() ? -1 : static_cast<int>(self - ranks.begin());
  // Only the members count, so all of them come to the same name.
  if (spec.rank >= 0) {
    char hash[17];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hash_of(ranks)));
    const uint64_t number = parent->count_groups_of(ranks);
    spec.name = parent->name() + "/" + hash + "." + std::to_string(number);
    spec.label = label.empty() ? label_of(*parent, ranks, number) : label;
  } else {
    spec.name = parent->name() + "/of others";
    spec.label = "a group of others";
  }
  auto backend = spec.rank < 0 ? nullptr : parent->backend().subgroup(spec);
  return std::make_shared<ProcessGroup>(std::move(spec), parent->own_global_rank(),
                                        std::move(backend), timeout.value_or(parent->timeout()));
}

}  // namespace farspan::dist
