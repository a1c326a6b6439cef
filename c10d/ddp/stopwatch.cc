#include <farspan/c10d/ddp/stopwatch.h>

#include <algorithm>

namespace farspan::dist {

void DdpStopwatch::ends() {
  const TimePoint now = Clock::now();
  present_.backward = backward_ended_ - backward_began_;
  present_.communication = now - communication_began_;
  const Clock::duration overlap = backward_ended_ - communication_began_;
  present_.overlap = std::max(Clock::duration(0), overlap);
  ++iterations_;
  last_.push_back(present_);
  if (last_.size() > DdpStatistics::kKept) last_.pop_front();
}

void DdpStopwatch::report(DdpStatistics& statistics) const {
  statistics.iterations = iterations_;
  statistics.last.assign(last_.begin(), last_.end());
  statistics.average = {};
  if (last_.empty()) return;
  DdpTimes& sum = statistics.average;
  for (const DdpTimes& one : last_) {
    sum.forward += one.forward;
    sum.backward += one.backward;
    sum.communication += one.communication;
    sum.overlap += one.overlap;
  }
  const auto count = static_cast<int64_t>(last_.size());
  for (auto* part : {&sum.forward, &sum.backward, &sum.communication, &sum.overlap}) {
    *part /= count;
  }
}

}  // namespace farspan::dist
