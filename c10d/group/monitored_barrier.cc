#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/group/transfer.h>

namespace farspan::dist {
namespace {

constexpr int kComeTag = -1;    // to the first rank: the number of the barrier
constexpr int kAnswerTag = -2;  // from it: the number, and how many are missing

struct Barrier {
  Group group;
  uint64_t number;
  Deadline deadline;

  MessageOptions options(int tag) const {
    const auto left = std::chrono::ceil<Millis>(deadline.remaining());
    return {group, tag, deadline.is_never() ? kNoTimeout : std::max(left, Millis(1))};
  }
  int rank(int place) const { return group->global_rank(place); }
};

at::Tensor numbers(int64_t first, int64_t second) { return at::tensor({first, second}, at::kLong); }
int64_t first_of(const at::Tensor& pair) { return pair[0].item<int64_t>(); }

// Words of an earlier barrier, which somebody gave up, may still be on their way.
void receive(const Barrier& barrier, const at::Tensor& pair, int from, int tag) {
  do {
    Transfer(P2POp::Kind::kRecv, pair, from, barrier.options(tag)).finish();
  } while (first_of(pair) < static_cast<int64_t>(barrier.number));
}

void come(const Barrier& barrier) {
  const auto number = static_cast<int64_t>(barrier.number);
  Transfer(P2POp::Kind::kSend, numbers(number, 0), barrier.rank(0), barrier.options(kComeTag))
      .begin();
  const at::Tensor answer = numbers(0, 0);
  receive(barrier, answer, barrier.rank(0), kAnswerTag);
  const int64_t missing = answer[1].item<int64_t>();
  if (missing == 0) return;
  throw Error(Code::kTimeout, std::to_string(missing) + " of " +
                                  std::to_string(barrier.group->size()) +
                                  " ranks did not come in time")
      .advice("rank " + std::to_string(barrier.rank(0)) + " says who");
}

void wait_for_all(const Barrier& barrier, bool wait_all_ranks) {
  const int size = barrier.group->size();
  int come = 0;
  std::string missing, whys;
  for (int place = 1; place < size; ++place) {
    const at::Tensor word = numbers(0, 0);
    try {
      receive(barrier, word, barrier.rank(place), kComeTag);
      ++come;
    } catch (const Error& error) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(barrier.rank(place));
      if (error.code() != Code::kTimeout) whys += (whys.empty() ? ": " : "; ") + error.message();
      if (!wait_all_ranks) break;
    }
  }
  const int64_t absent = missing.empty() ? 0 : size - 1 - come;
  const at::Tensor answer = numbers(static_cast<int64_t>(barrier.number), absent);
  for (int place = 1; place < size; ++place) {  // also to who comes late
    Transfer(P2POp::Kind::kSend, answer, barrier.rank(place), barrier.options(kAnswerTag)).begin();
  }
  if (missing.empty()) return;
  throw Error(Code::kTimeout, "rank " + missing + " did not come to the barrier" + whys)
      .worker("rank " + missing)
      .advice("look at what it does, or give the barrier more time");
}

}  // namespace

void monitored_barrier(const MonitoredBarrierOptions& options) {
  const TimePoint called = Clock::now();
  const Group group = options.group ? options.group : default_group();
  group->backend();
  const Barrier barrier{group, group->count_monitored_barrier(),
                        group->deadline(options.timeout, called)};
  try {
    if (group->rank() == 0) {
      wait_for_all(barrier, options.wait_all_ranks);
    } else {
      come(barrier);
    }
  } catch (Error& error) {
    throw error.operation("monitored_barrier of the group '" + group->name() + "'")
        .elapsed(Clock::now() - called);
  }
}

}  // namespace farspan::dist
