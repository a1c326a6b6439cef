#include <farspan/c10d/group/history.h>

#include <algorithm>

#include <farspan/c10d/base/time.h>

namespace farspan::dist {

uint64_t History::add(const OperationRecord& record) {
  MutexLock lock(mutex_);
  const uint64_t id = ++last_;
  if (ring_.empty()) ring_.resize(kKept);
  OperationRecord& place = ring_[id % kKept];
  place = record;
  place.id = id;
  return id;
}

void History::begin(uint64_t id, uint64_t sequence, TimePoint at) {
  MutexLock lock(mutex_);
  OperationRecord* const record = find_locked(id);
  if (!record) return;
  record->state = OperationRecord::State::kRunning;
  record->signature.sequence = sequence;
  record->begun = at;
}

void History::end(uint64_t id, bool failed, TimePoint at) {
  MutexLock lock(mutex_);
  OperationRecord* const record = find_locked(id);
  if (!record) return;
  record->state = failed ? OperationRecord::State::kFailed : OperationRecord::State::kDone;
  record->ended = at;
}

OperationRecord* History::find_locked(uint64_t id) {
  if (ring_.empty()) return nullptr;
  OperationRecord& record = ring_[id % kKept];
  return record.id == id ? &record : nullptr;
}

std::vector<OperationRecord> History::records() const {
  MutexLock lock(mutex_);
  std::vector<OperationRecord> all;
  for (const OperationRecord& record : ring_) {
    if (record.id != 0) all.push_back(record);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return all;
}

std::string describe(const OperationRecord& record, TimePoint now) {
  using State = OperationRecord::State;
  const bool is_message = record.signature.op == Op::kSend || record.signature.op == Op::kRecv;
  std::string text;
  if (record.signature.sequence != 0) {
    text = (is_message ? "message " : "call ") + std::to_string(record.signature.sequence) + ": ";
  }
  text += describe(record.signature);
  if (is_message) {
    text += record.signature.op == Op::kSend ? " to " : " from ";
    text += record.peer < 0 ? "any rank" : "rank " + std::to_string(record.peer);
    text += ", tag " + std::to_string(record.tag);
  }
  const auto took = [](TimePoint from, TimePoint to) { return farspan::describe(to - from); };
  const auto ago = [&](TimePoint at) { return took(at, now) + " ago"; };
  switch (record.state) {
    case State::kQueued:
      return text + ", queued for " + took(record.called, now);
    case State::kRunning:
      return text + ", running for " + took(record.begun, now);
    case State::kDone:
      return text + ", began " + ago(record.begun) + ", ended " + ago(record.ended) + ", took " +
             took(record.begun, record.ended);
    case State::kFailed:
      return text + ", called " + ago(record.called) + ", failed " + ago(record.ended) +
             ", after " + took(record.called, record.ended);
  }
  return text;
}

}  // namespace farspan::dist
