#include <farspan/rpc/agent/offers.h>

#include <algorithm>
#include <random>
#include <utility>

namespace farspan::agent {
namespace {

uint64_t random_word() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

}  // namespace

Offers::Offers(std::shared_ptr<net::SharedBlocks> blocks)
    : blocks_(std::move(blocks)), first_mark_(random_word()) {}

uint64_t Offers::make(wire::OutFrame& frame, uint64_t from, bool hand_over) {
  std::vector<wire::HandedOver> blocks;
  if (hand_over && blocks_) blocks = blocks_of(frame, from);
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
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].block == 0) continue;
    frame.header.flags |= wire::kHandsOver;
    away_.emplace(blocks[i].block, Away{frame.segments[i], id});
    handed_over_.fetch_add(frame.segments[i].size());
  }
  frame.handed_over = std::move(blocks);
  count_.fetch_add(1);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  made_.fetch_add(1, std::memory_order_relaxed);
  return id;
}

// Empty: none is handed over. A segment that owns its block itself, and alone, is all there is of
// it here; one whose owner is something else, a tensor's storage, may not be.
std::vector<wire::HandedOver> Offers::blocks_of(const wire::OutFrame& frame, uint64_t from) const {
  std::vector<wire::HandedOver> blocks;
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    const Buffer& segment = frame.segments[i];
    if (segment.size() < from || segment.owner().use_count() != 1) continue;
    const auto place = blocks_->find(segment.data());
    if (!place || segment.owner().get() != segment.data() - place->offset) continue;
    blocks.resize(frame.segments.size());
    const auto& [block, offset] = *place;
    blocks[i] = {block.id, block.bytes, static_cast<uint64_t>(block.descriptor), offset};
  }
  return blocks;
}

void Offers::belongs_to(uint64_t request, uint64_t id) {
  if (handed_over_.load() == 0) return;
  MutexLock lock(mutex_);
  for (auto& [block, away] : away_) {
    if (away.offer == id) away.request = request;
  }
}

void Offers::take_back(uint64_t block) noexcept {
  AllAway::node_type back;
  MutexLock lock(mutex_);
  back = away_.extract(block);
  if (!back.empty()) handed_over_.fetch_sub(back.mapped().segment.size());
}

void Offers::take_back_unsent(std::span<const uint64_t> requests) noexcept {
  if (requests.empty()) return;
  take_back_if([&](const Away& away) {
    return std::ranges::find(requests, away.request) != requests.end();
  });
}

void Offers::take_back_of(uint64_t id) noexcept {
  take_back_if([id](const Away& away) { return away.offer == id; });
}

template <class IsBack>
void Offers::take_back_if(const IsBack& is_back) noexcept {
  AllAway back;
  if (handed_over_.load() == 0) return;
  MutexLock lock(mutex_);
  for (auto next = away_.begin(); next != away_.end();) {
    const auto at = next++;
    if (!is_back(at->second)) continue;
    handed_over_.fetch_sub(at->second.segment.size());
    back.insert(away_.extract(at));
  }
}

bool Offers::withdraw(uint64_t id) noexcept {
  Kept kept;
  {
    MutexLock lock(mutex_);
    const auto found = kept_.find(id);
    if (found == kept_.end()) return false;
    kept = std::move(found->second);
    kept_.erase(found);
  }
  release(std::move(kept));
  return true;
}

std::vector<Buffer> Offers::segments_of(uint64_t id) const {
  MutexLock lock(mutex_);
  const auto found = kept_.find(id);
  return found == kept_.end() ? std::vector<Buffer>{} : found->second.segments;
}

void Offers::close() noexcept {
  std::unordered_map<uint64_t, Kept> all;
  AllAway away;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    all.swap(kept_);
    away.swap(away_);
    handed_over_.store(0);
  }
  // Nobody will say that the peer does not use them any more.
  for (const auto& [block, one] : away) blocks_->abandon(one.segment.data());
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
