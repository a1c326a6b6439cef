// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Spinning, bounded: how long a thread polls before it sleeps, and how many may at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <farspan/c10d/base/processors.h>
#include <farspan/c10d/base/time.h>

namespace farspan::net {

// A sleeping thread costs about 45 us to wake, so polling for that long at most doubles the cost of
// a miss, and makes a hit twenty times cheaper. Where most waits end within the long limit (a
// mebibyte is answered in some 90 us), polling for that long is worth its while, too.
inline constexpr std::chrono::microseconds kSpinLimit{50}, kLongSpinLimit{200};

// How long to poll for something, from how long it took lately until it came, whether that was
// polled or slept for. Where too little comes soon, one wait in sixteen is polled all the same, for
// what comes to a sleeper comes late.
//
// Threading: any thread; races only blur the estimate.
class SpinGovernor {
 public:
  std::chrono::microseconds budget() noexcept {
    if (comes_within_long()) return kLongSpinLimit;
    if (comes_within_short()) return kSpinLimit;
    const uint32_t tries = tries_.fetch_add(1, std::memory_order_relaxed);
    return tries % kProbeEvery == 0 ? kSpinLimit : std::chrono::microseconds{0};
  }

  // Whether it is likely enough to be there before one would have gone to sleep.
  bool comes_soon() const noexcept { return comes_within_long() || comes_within_short(); }

  // What was waited for came after so long, or has not come yet.
  void learn(Clock::duration took) noexcept {
    learn(within_short_, took <= kSpinLimit);
    learn(within_long_, took <= kLongSpinLimit);
  }

  // The same for waits that begin in one place and end in another. Of several that begin, the last
  // counts; an arrival that nobody waits for does not.
  void begin(TimePoint now) noexcept {
    since_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void arrived(TimePoint now) noexcept {
    const Clock::rep since = since_.exchange(0, std::memory_order_relaxed);
    if (since != 0) learn(now.time_since_epoch() - Clock::duration(since));
  }

 private:
  // Shares of the last waits, in 256ths; each new one counts for an eighth.
  static constexpr int32_t kAll = 256, kHalf = 128, kFew = 24;
  static constexpr uint32_t kProbeEvery = 16;

  bool comes_within_long() const noexcept {
    return within_long_.load(std::memory_order_relaxed) >= kHalf;
  }
  bool comes_within_short() const noexcept {
    return within_short_.load(std::memory_order_relaxed) >= kFew;
  }
  static void learn(std::atomic<int32_t>& share, bool is_within) noexcept {
    const int32_t before = share.load(std::memory_order_relaxed);
    share.store(before + ((is_within ? kAll : 0) - before) / 8, std::memory_order_relaxed);
  }

  std::atomic<int32_t> within_short_{kAll}, within_long_{0};
  std::atomic<uint32_t> tries_{0};
  std::atomic<Clock::rep> since_{0};  // 0: nobody waits
};

// Whether more threads want to run than there are processors, so that who polls may keep one from
// its work: once two looks in a row say so, until most of the last few do not. It looks at most
// once in a millisecond; not when nobody has asked for longer than three and it was not crowded,
// for two looks in a row are needed: who calls now and then does not pay for one, and its system
// call. Where a look cannot tell, a processor that was given away and came back late makes a crowd
// for a while.
//
// Threading: any thread; `count` may be called by several at once.
class CrowdWatch {
 public:
  //   count  the threads that run or would; negative: that cannot be told
  CrowdWatch(int (*count)() noexcept, int processors) noexcept
      : count_(count), processors_(processors) {}
  bool is_crowded(TimePoint now) noexcept;
  // Whether the last look has seen that.
  bool was_crowded() const noexcept { return too_many_.load(std::memory_order_relaxed) >= kCrowd; }
  // A thread that gave its processor away got it back so late that others computed meanwhile: no
  // look is needed to see that it is crowded. Who has no processor is late for every look.
  void saw_crowd(TimePoint now) noexcept;
  // By one look, now, after which it counts as crowded: for who is about to poll for long.
  bool lacks_processors(TimePoint now) noexcept;
  // Whether so many processors had nothing to do when it last looked.
  bool has_idle(TimePoint now, int processors) noexcept;

 private:
  void look(TimePoint now) noexcept;

  static constexpr std::chrono::milliseconds kEvery{1}, kStale{2}, kSeenLasts{100};
  static constexpr int kCrowd = 2, kMost = 4;

  int (*const count_)() noexcept;
  const int processors_;
  std::atomic<Clock::rep> next_{0};
  std::atomic<int> too_many_{0};           // looks that found too many, less those that did not
  std::atomic<int> running_{0};            // at the last one
  std::atomic<Clock::rep> seen_until_{0};  // the crowd that saw_crowd() has told of
};

// Of this machine, by /proc/loadavg; that cannot tell where this process may use a part of the
// processors only.
bool is_crowded(TimePoint now) noexcept;
// Without a look, which takes longer than what is about to come.
bool was_crowded() noexcept;
bool lacks_processors(TimePoint now) noexcept;
bool has_idle_processors(TimePoint now, int processors) noexcept;

// While there is one, a look takes a microsecond, and else seven: what it reads stays open.
//
// Threading: any thread.
class QuickLooks {
 public:
  QuickLooks() noexcept;
  ~QuickLooks();
  QuickLooks(const QuickLooks&) = delete;
  QuickLooks& operator=(const QuickLooks&) = delete;
};

// A place among the process's spinning threads: one fewer than its processors, at least one, so
// that polling never keeps the last core from the thread that is polled for. None on a machine that
// is crowded.
class SpinPermit {
 public:
  explicit SpinPermit(bool crowded) noexcept {
    if (crowded) return;
    granted_ = spinning().fetch_add(1) < limit();
    if (!granted_) spinning().fetch_sub(1);
  }
  ~SpinPermit() {
    if (granted_) spinning().fetch_sub(1);
  }
  SpinPermit(const SpinPermit&) = delete;
  SpinPermit& operator=(const SpinPermit&) = delete;
  explicit operator bool() const noexcept { return granted_; }

 private:
  static std::atomic<int>& spinning() noexcept {
    static std::atomic<int> count{0};
    return count;
  }
  static int limit() noexcept {
    static const int processors = available_processors();
    return std::max(1, processors - 1);
  }
  bool granted_ = false;
};

// Looks of a thread that may not poll, since others want every processor: between their turns, so
// that no look keeps anybody from running. It is not put to sleep and woken, which costs more than
// a few turns of threads that call or answer. The turns of those that compute take milliseconds,
// and who sleeps is woken before they end: such a turn is the last of a wait, and no wait in this
// process passes any until what it took is a twentieth of the time. But where threads have asked on
// the line every 10 us meanwhile, the next wait passes turns again: it is most likely who answers
// them that had the processor, and who sleeps would be woken for each single answer.
class TurnsOfOthers {
 public:
  //   questions  that threads of this process have asked so far, on the line that is looked at
  TurnsOfOthers(TimePoint now, const std::atomic<uint64_t>& questions,
                void (*yield)() noexcept = std::this_thread::yield) noexcept;
  // Whether any may be passed.
  bool any() const noexcept { return left_ > 0; }
  // Gives the processor away, for a look afterwards; false: enough of that.
  bool pass() noexcept;

 private:
  const std::atomic<uint64_t>& questions_;
  void (*const yield_)() noexcept;
  int left_;
};

// Gives the processor to others that wait for it.
void let_others_go_first() noexcept;
// Others have run each of the many last times that the calling thread let them, as if it shared its
// processor with the very thread that it polls for. The kernel can take tens of milliseconds to
// part them, on a virtual machine, while another processor is idle.
bool shares_processor() noexcept;
// Moves the calling thread to another processor, if it may run on another one; it may run on the
// same ones as before. For threads of the reactor's own.
void leave_processor() noexcept;

// How long one goes on looking: for a while, and not beyond a deadline. What takes longer than it
// does between threads that run may wait for this very processor: a system call that wakes a thread
// often puts it behind the one that calls. So who looks for long lets others go first now and then.
class SpinTime {
 public:
  SpinTime(TimePoint start, Clock::duration budget, TimePoint latest = TimePoint::max()) noexcept
      : end_(std::min(start + budget, latest)), now_(start), yield_at_(start + kYieldEvery) {}
  // Looks at the clock at every eighth call only.
  bool is_over() noexcept {
    if (++calls_ % 8 != 0) return false;
    now_ = Clock::now();
    if (now_ < yield_at_) return now_ >= end_;
    let_others_go_first();
    yield_at_ = now_ + kYieldEvery;
    return now_ >= end_;
  }
  // When that was last.
  TimePoint now() const noexcept { return now_; }

 private:
  static constexpr std::chrono::microseconds kYieldEvery{10};

  TimePoint end_, now_, yield_at_;
  uint32_t calls_ = 0;
};

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farspan::net
