#include <farspan/rpc/agent/leases.h>

#include <algorithm>
#include <utility>

namespace farspan::agent {

uint64_t Leases::make(wire::OutFrame& frame) {
  if (!frame.lent) return 0;
  MutexLock lock(mutex_);
  if (closed_) return 0;
  const uint64_t id = ++last_id_;
  lent_.emplace(id, Lent{frame.lent});
  frame.lease = id;
  frame.header.flags |= wire::kLends;
  count_.fetch_add(1);
  return id;
}

void Leases::belongs_to(uint64_t request, uint64_t id) noexcept {
  MutexLock lock(mutex_);
  const auto found = lent_.find(id);
  if (found != lent_.end()) found->second.request = request;
}

void Leases::end(uint64_t id) noexcept {
  All::node_type ended;
  MutexLock lock(mutex_);
  ended = lent_.extract(id);
  if (!ended.empty()) count_.fetch_sub(1);
}

void Leases::end_unsent(std::span<const uint64_t> requests) noexcept {
  All ended;
  if (requests.empty() || count() == 0) return;
  MutexLock lock(mutex_);
  for (auto next = lent_.begin(); next != lent_.end();) {
    const auto at = next++;
    if (std::ranges::find(requests, at->second.request) == requests.end()) continue;
    ended.insert(lent_.extract(at));
    count_.fetch_sub(1);
  }
}

std::vector<std::shared_ptr<wire::Lent>> Leases::close() {
  std::vector<std::shared_ptr<wire::Lent>> ended;
  MutexLock lock(mutex_);
  closed_ = true;
  ended.reserve(lent_.size());
  for (auto& [id, lent] : lent_) ended.push_back(std::move(lent.what));
  lent_.clear();
  count_.store(0);
  return ended;
}

}  // namespace farspan::agent
