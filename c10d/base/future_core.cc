#include <farspan/c10d/base/future_core.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>

#include <farspan/c10d/base/busy_time.h>

namespace farspan {
namespace {

constexpr int kMaxNesting = 64;

thread_local Waiter* thread_waiter = nullptr;

struct CallbackRow {
  struct Waiting {
    std::function<void()> callback;
    bool deep;  // it waits for want of stack, not behind another callback of its future
  };
  int depth = 0;  // of callbacks that run one inside the other
  std::deque<Waiting> waiting;

  void run(std::function<void()>& callback) {
    struct Nested {
      int& depth;
      explicit Nested(int& d) : depth(d) { ++depth; }
      ~Nested() { --depth; }
    } nested(depth);
    callback();
  }
  // Until no more than `rest` wait.
  void run_waiting(size_t rest = 0) {
    while (waiting.size() > rest) {
      std::function<void()> next = std::move(waiting.front().callback);
      waiting.pop_front();
      run(next);
    }
  }
  void run_deep() {
    for (;;) {
      const auto deep = std::find_if(waiting.begin(), waiting.end(),
                                     [](const Waiting& entry) { return entry.deep; });
      if (deep == waiting.end()) return;
      std::function<void()> next = std::move(deep->callback);
      waiting.erase(deep);
      run(next);
    }
  }
};
thread_local CallbackRow callback_row;

class CondVarSleeper final : public Sleeper {
 public:
  void wake() noexcept override {
    MutexLock lock(mutex_);
    woken_ = true;
    condition_.notify_one();  // under the lock: the sleeper may be gone right after it
  }
  void sleep(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!woken_) {
      if (!condition_.wait_until(mutex_, deadline)) return;
    }
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool woken_ FARSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace

Waiter* current_waiter() noexcept { return thread_waiter; }
void set_current_waiter(Waiter* waiter) noexcept { thread_waiter = waiter; }

CallbackPause::CallbackPause(const Elsewhere& elsewhere)
    : outer_depth_(std::exchange(callback_row.depth, 0)) {
  Unfinished::hand_over_all();
  if (!elsewhere) callback_row.run_deep();
  if (!elsewhere || callback_row.waiting.empty()) return;
  elsewhere([row = std::exchange(callback_row.waiting, {})]() mutable {
    auto& waiting = callback_row.waiting;
    const size_t before = waiting.size();
    waiting.insert(waiting.begin(), std::make_move_iterator(row.begin()),
                   std::make_move_iterator(row.end()));
    callback_row.run_waiting(before);
  });
}

CallbackPause::~CallbackPause() { callback_row.depth = outer_depth_; }

bool FutureCore::add_sleeper(Sleeper& sleeper) {
  MutexLock lock(mutex_);
  if (ready_.load(std::memory_order_relaxed)) return false;
  sleepers_.push_back(&sleeper);
  return true;
}

bool FutureCore::remove_sleeper(Sleeper& sleeper) {
  MutexLock lock(mutex_);
  return std::erase(sleepers_, &sleeper) > 0;
}

void FutureCore::on_ready(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (!ready_.load(std::memory_order_relaxed)) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

bool FutureCore::sleep(Deadline deadline) {
  const CallbackPause pause;
  CondVarSleeper sleeper;
  if (!add_sleeper(sleeper)) return true;
  sleeper.sleep(deadline);
  if (!remove_sleeper(sleeper)) sleeper.sleep(Deadline::never());
  return ready();
}

void FutureCore::comes_of(const std::shared_ptr<FutureCore>& source) noexcept {
  const auto first = source->first_source();
  MutexLock lock(mutex_);
  source_ = source;
  first_source_ = first && !first->ready() ? first : source;
}

std::shared_ptr<FutureCore> FutureCore::source() noexcept {
  MutexLock lock(mutex_);
  return source_.lock();
}

std::shared_ptr<FutureCore> FutureCore::first_source() noexcept {
  MutexLock lock(mutex_);
  return first_source_.lock();
}

// A continuation may return what comes of itself, for ever.
std::shared_ptr<FutureCore> FutureCore::origin() noexcept {
  constexpr int kLongestChain = 1 << 20;
  auto from = source();
  for (int step = 0; step < kLongestChain && from && !from->ready(); ++step) {
    auto further = from->source();
    if (!further) return from;
    from = std::move(further);
  }
  return nullptr;
}

bool FutureCore::cancel() {
  if (ready()) return false;
  const auto from = origin();
  return from && from->cancel();
}

Error FutureCore::not_there(Clock::duration elapsed) {
  Error error(Code::kTimeout, "the result is not there yet");
  if (const auto from = origin()) {
    from->name_in(error);
  } else {
    name_in(error);
  }
  const std::string of = error.operation().empty() ? "" : " for " + error.operation();
  return error.operation("Future::wait" + of)
      .elapsed(elapsed)
      .advice("wait longer; the operation itself goes on");
}

// With a deadline not: that way the thread may run what the future comes of, however long it takes.
bool FutureCore::block(Deadline deadline) {
  const auto first = deadline.is_never() ? first_source() : nullptr;
  if (first && first->wait(deadline) && ready()) return true;
  if (Waiter* waiter = current_waiter()) return waiter->wait(*this, deadline);
  return sleep(deadline);
}

void FutureCore::announce() {
  std::vector<std::function<void()>> callbacks;
  std::vector<Sleeper*> sleepers;
  {
    MutexLock lock(mutex_);
    for (Sleeper* sleeper : sleepers_) sleeper->expect_wake();
    sleepers.swap(sleepers_);
    callbacks.swap(callbacks_);
  }
  for (Sleeper* sleeper : sleepers) sleeper->wake();  // who may end this future's life
  CallbackRow& row = callback_row;
  if (callbacks.empty()) return;
  if (row.depth >= kMaxNesting) {
    for (auto& callback : callbacks) row.waiting.push_back({std::move(callback), true});
    return;
  }
  const BusyTime time(row.depth == 0);
  // The others go to the head of the row, where the first one finds them if it is about to block.
  const size_t before = row.waiting.size();
  for (size_t last = callbacks.size() - 1; last > 0; --last) {
    row.waiting.push_front({std::move(callbacks[last]), false});
  }
  row.run(callbacks.front());
  row.run_waiting(row.depth == 0 ? 0 : before);
}

}  // namespace farspan
