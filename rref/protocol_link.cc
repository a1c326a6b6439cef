#include <farspan/rref/protocol_link.h>

namespace farspan::rref {

bool Link::fill(ControlFrame& frame) {
  const uint64_t stop = std::min(end(), base_ + window_);
  if (next_ >= stop && !ack_due_) return false;
  frame.base = base_;
  frame.first = next_;
  frame.items.assign(items_.begin() + static_cast<std::ptrdiff_t>(next_ - base_),
                     items_.begin() + static_cast<std::ptrdiff_t>(stop - base_));
  frame.ack = wanted_;
  frame.refused = refused_;
  next_ = stop;
  highest_ = std::max(highest_, stop);
  ack_due_ = false;
  return true;
}

bool Link::valid(const ControlFrame& frame) const noexcept {
  const size_t count = frame.items.size();
  return frame.base >= 1 && frame.first >= frame.base && frame.first - frame.base <= window_ &&
         frame.first + count - frame.base <= window_ && frame.base <= UINT64_MAX / 2 &&
         frame.ack >= 1 && frame.ack <= highest_ && frame.refused.size() <= window_ &&
         (count == 0 || frame.first <= wanted_ + window_);
}

std::vector<Link::Settled> Link::acknowledged(const ControlFrame& frame) {
  std::vector<Settled> settled;
  if (frame.ack <= base_) return settled;
  settled.reserve(frame.ack - base_);
  auto refused = frame.refused.begin();
  while (base_ < frame.ack) {
    while (refused != frame.refused.end() && refused->sequence < base_) ++refused;
    std::optional<Refusal> refusal;
    if (refused != frame.refused.end() && refused->sequence == base_) refusal = refused->reason;
    settled.push_back({base_, items_.front(), refusal});
    items_.pop_front();
    ++base_;
  }
  next_ = std::max(next_, base_);
  return settled;
}

void Link::forget_refusals(uint64_t below) {
  if (below <= peer_base_) return;
  peer_base_ = below;
  std::erase_if(refused_, [below](const RefusedItem& item) { return item.sequence < below; });
}

std::vector<Link::Settled> Link::unsettled() const {
  std::vector<Settled> left;
  uint64_t sequence = base_;
  for (const ControlItem& item : items_) left.push_back({sequence++, item, std::nullopt});
  return left;
}

std::vector<Link::Settled> Link::clear() {
  std::vector<Settled> left = unsettled();
  *this = Link(window_);
  return left;
}

}  // namespace farspan::rref
