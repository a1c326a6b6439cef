#include <farspan/rpc/agent/offers.h>

#include <random>
#include <utility>

namespace farspan::agent {
namespace {

uint64_t random_word() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

Offers::Offers() : first_mark_(random_word()) {}

uint64_t Offers::make(wire::OutFrame& frame, uint64_t from) {
  Kept kept;
  uint64_t bytes = 0;
  for (const Buffer& segment : frame.segments) {
    if (segment.size() < from || !segment.owner()) continue;
    kept.segments.push_back(segment);
    bytes += segment.size();
  }
  if (kept.segments.empty()) return 0;
  kept.mark = std::make_unique<std::atomic<uint64_t>>();
  MutexLock lock(mutex_);
  if (closed_) return 0;
  const uint64_t id = ++last_id_;
  const uint64_t mark = first_mark_ + id;
  kept.mark->store(mark);
  frame.offer = {id, reinterpret_cast<uintptr_t>(kept.mark.get()), mark};
  frame.offered_from = from;
  frame.header.flags |= wire::kOffered;
  kept_.emplace(id, std::move(kept));
  count_.fetch_add(1);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  made_.fetch_add(1, std::memory_order_relaxed);
  return id;
}

void Offers::withdraw(uint64_t id) noexcept {
  Kept kept;
  {
    MutexLock lock(mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end()) return;
    kept = std::move(found->second);
    kept_.erase(found);
  }
  release(std::move(kept));
}

std::vector<Buffer> Offers::segments_of(uint64_t id) const {
  MutexLock lock(mutex_);
  const auto found = kept_.find(id);
  return found == kept_.end() ? std::vector<Buffer>{} : found->second.segments;
}

void Offers::close() noexcept {
  std::unordered_map<uint64_t, Kept> all;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    all.swap(kept_);
  }
  for (auto& [id, kept] : all) release(std::move(kept));
}

// The mark is gone before anything else is done with the memory: what follows a store that has been
// looked at comes after it, also where an exchange alone would let it pass.
void Offers::release(Kept kept) noexcept {
  kept.mark->exchange(0, std::memory_order_seq_cst);
  static_cast<void>(kept.mark->load(std::memory_order_seq_cst));
  uint64_t bytes = 0;
  for (const Buffer& segment : kept.segments) bytes += segment.size();
  kept.segments.clear();
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  count_.fetch_sub(1);
}

}  // namespace farspan::agent
