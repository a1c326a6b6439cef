#include <ATen/ATen.h>

#include <atomic>
#include <string>

#include <farspan/c10d/group/transfer.h>

namespace farspan::dist {
namespace {

// Words are three numbers. Those of the first rank, in the order of its barriers:
//   barrier, kAsk      is this rank in it?
//   barrier, place, n  it is over: the rank at that place is missing, the first of n that are known
//                      to be; 0: all have come
// Of the others, one for each question, and one when they give up:
//   barrier, theirs    the one that was asked for, and the one that this rank is in
//   barrier, kGone     this rank has given it up
// Each word names its barrier, so that what is left of one that failed is known, and dropped.
constexpr int kReplyTag = -1, kAskTag = -2;
constexpr int64_t kAsk = -1, kGone = -1;
// For what is sent at the end of one's time. Who knows the first rank to be in the barrier waits so
// much longer for its last word, which says who is missing.
constexpr Millis kLastWordTime{1000};

struct Barrier {
  Group group;
  int64_t number;
  Deadline deadline;

  MessageOptions options(int tag, Millis at_least = Millis(1)) const {
    const auto left = std::chrono::ceil<Millis>(deadline.remaining());
    return {group, tag, deadline.is_never() ? kNoTimeout : std::max(left, at_least)};
  }
  int rank(int place) const { return group->global_rank(place); }
  Barrier with_time_for_last_word() const {
    if (deadline.is_never()) return *this;
    return {group, number, Deadline(deadline.at() + kLastWordTime)};
  }
  // "rank 3 (host:pid)".
  std::string name_of(int place) const { return group->backend().name_of(place); }
};

struct Word {
  int64_t barrier, what, count = 0;
};

void tell(const Barrier& barrier, int place, int tag, Word word, Millis at_least = Millis(1)) {
  const at::Tensor numbers = at::tensor({word.barrier, word.what, word.count}, at::kLong);
  const auto options = barrier.options(tag, at_least);
  (void)Transfer(P2POp::Kind::kSend, numbers, barrier.rank(place), options).begin();
}

Word hear(const Barrier& barrier, int place, int tag) {
  const at::Tensor numbers = at::zeros({3}, at::kLong);
  Transfer(P2POp::Kind::kRecv, numbers, barrier.rank(place), barrier.options(tag)).finish();
  const auto* const word = numbers.const_data_ptr<int64_t>();
  return {word[0], word[1], word[2]};
}

// A word of the first rank. It may be late, or not in the barrier at all.
Word hear_first(const Barrier& barrier, bool has_asked) {
  try {
    return hear(has_asked ? barrier.with_time_for_last_word() : barrier, 0, kAskTag);
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  const std::string first = barrier.name_of(0);
  throw Error(Code::kTimeout, first + (has_asked ? " has not said in time whether all have come"
                                                 : " did not come to the barrier"))
      .worker(first)
      .advice("look at what it does, or give the barrier more time");
}

[[noreturn]] void refuse_missed(const Barrier& barrier, int64_t now) {
  throw Error(Code::kTimeout, "this rank came too late to barrier " +
                                  std::to_string(barrier.number) + ": " + barrier.name_of(0) +
                                  " is in barrier " + std::to_string(now))
      .advice("call it again: the barrier with the same number is met");
}

[[noreturn]] void refuse_incomplete(const Barrier& barrier, int place, int64_t others) {
  const std::string missing = barrier.name_of(place), first = barrier.name_of(0);
  std::string what = first + " gave up: " + missing;
  if (others > 0) what += " and " + std::to_string(others) + (others == 1 ? " other" : " others");
  throw Error(Code::kTimeout, what + " had not come")
      .worker(missing)
      .advice(first + " says more; look at what " + missing + " does");
}

// A question of a later barrier is kept for the call with its number.
void answer_until_over(const Barrier& barrier, std::atomic<int64_t>& kept_question) {
  bool has_asked = false;
  while (true) {
    const int64_t kept = kept_question.exchange(0);
    const Word word = kept ? Word{kept, kAsk} : hear_first(barrier, has_asked);
    if (word.barrier > barrier.number) {
      if (word.what == kAsk) kept_question = word.barrier;
      refuse_missed(barrier, word.barrier);
    }
    if (word.what == kAsk) {
      has_asked |= word.barrier == barrier.number;
      tell(barrier, 0, kReplyTag, {word.barrier, barrier.number});
    } else if (word.barrier == barrier.number) {
      if (word.what == 0) return;
      refuse_incomplete(barrier, static_cast<int>(word.what), word.count - 1);
    }
  }
}

void come(const Barrier& barrier, std::atomic<int64_t>& kept_question) {
  try {
    answer_until_over(barrier, kept_question);
  } catch (...) {
    try {
      tell(barrier, 0, kReplyTag, {barrier.number, kGone}, kLastWordTime);
    } catch (const Error&) {  // of a group that has failed
    }
    throw;
  }
}

//   throws  Error: it does not come in time, or is not in this barrier any more
void expect(const Barrier& barrier, int place) {
  Word word{};
  do {
    word = hear(barrier, place, kReplyTag);
  } while (word.barrier < barrier.number);
  if (word.what == barrier.number) return;
  const std::string rank = barrier.name_of(place);
  throw Error(Code::kCancelled, word.what == kGone ? rank + " has given it up"
                                                   : rank + " is in barrier " +
                                                         std::to_string(word.what) + " already");
}

// Those that are known to be.
struct Missing {
  int count = 0, first = 0;
  std::string ranks, whys;
  bool is_gone = false;  // one of them, for good
};

Missing ask_all(const Barrier& barrier, bool wait_all_ranks) {
  const int size = barrier.group->size();
  for (int place = 1; place < size; ++place) {
    tell(barrier, place, kAskTag, {barrier.number, kAsk});
  }
  Missing missing;
  for (int place = 1; place < size; ++place) {
    try {
      expect(barrier, place);
    } catch (const Error& error) {
      if (missing.count++ == 0) missing.first = place;
      missing.is_gone |= error.code() == Code::kDisconnected;
      missing.ranks += (missing.ranks.empty() ? "" : ", ") + barrier.name_of(place);
      if (error.code() != Code::kTimeout) {
        missing.whys += (missing.whys.empty() ? ": " : "; ") + error.message();
      }
      if (!wait_all_ranks) break;
    }
  }
  return missing;
}

void wait_for_all(const Barrier& barrier, bool wait_all_ranks) {
  const int size = barrier.group->size();
  Missing missing = ask_all(barrier, wait_all_ranks);
  // Those that came first may have given up while the last one was waited for.
  if (missing.count == 0 && size > 2) missing = ask_all(barrier, wait_all_ranks);
  for (int place = 1; place < size; ++place) {  // also to who comes late
    tell(barrier, place, kAskTag, {barrier.number, missing.first, missing.count}, kLastWordTime);
  }
  if (missing.count == 0) return;
  throw Error(missing.is_gone ? Code::kDisconnected : Code::kTimeout,
              missing.ranks + " did not come to the barrier" + missing.whys)
      .worker(missing.ranks)
      .advice(missing.is_gone ? "go on in a new_group() of the others, or start the job again"
                              : "look at what it does, or give the barrier more time");
}

}  // namespace

void monitored_barrier(const MonitoredBarrierOptions& options) {
  const TimePoint called = Clock::now();
  const Group group = group_or_default(options.group, "monitored_barrier");
  group->backend();
  MonitoredBarriers& barriers = group->monitored_barriers();
  const Barrier barrier{group, ++barriers.called, group->deadline(options.timeout, called)};
  try {
    if (group->rank() == 0) {
      wait_for_all(barrier, options.wait_all_ranks);
    } else {
      come(barrier, barriers.kept_question);
    }
  } catch (Error& error) {
    throw error.operation("monitored_barrier of " + group->label()).elapsed(Clock::now() - called);
  }
}

}  // namespace farspan::dist
