// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Link: control items from one run of a worker to one run of another, each processed exactly once
// and in order, over frames that may be lost, doubled or reordered.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include <farspan/rref/protocol_messages.h>

namespace farspan::rref {

// Both directions at this end. The sender repeats what is not acknowledged; the receiver processes
// by sequence number, sets aside what came early, and answers what came twice with its
// acknowledgement. An acknowledgement carries the refusals, so that an item and its outcome cost
// one round trip. Memory at both ends: at most `window` items, however long the link lives, beside
// those that wait to be sent.
//
// Threading: the caller serialises.
class Link {
 public:
  struct Settled {
    uint64_t sequence;
    ControlItem item;
    std::optional<Refusal> refusal;
  };

  explicit Link(size_t window) : window_(window) {}

  // Returns the item's sequence number.
  uint64_t push(const ControlItem& item) {
    items_.push_back(item);
    return end() - 1;
  }

  // Writes what is due into a frame; false: nothing is.
  bool fill(ControlFrame& frame);
  // The next fill() repeats what is not acknowledged.
  void repeat() noexcept { next_ = base_; }
  void answer() noexcept { ack_due_ = true; }

  // False for a frame that breaks the rules; then it must not be used.
  bool valid(const ControlFrame& frame) const noexcept;
  // The items that the frame acknowledges, in order.
  std::vector<Settled> acknowledged(const ControlFrame& frame);
  // Gives `process` the items whose turn has come: it returns nothing, or a Refusal.
  template <class Process>
  void receive(const ControlFrame& frame, Process&& process) {
    if (frame.items.empty()) return;
    forget_refusals(frame.base);
    ack_due_ = true;
    uint64_t sequence = frame.first;
    for (const ControlItem& item : frame.items) {
      if (sequence == wanted_) {
        process_one(item, process);
      } else if (sequence > wanted_ && sequence < peer_base_ + window_) {
        early_.try_emplace(sequence, item);
      }
      ++sequence;
    }
    for (auto it = early_.begin(); it != early_.end() && it->first <= wanted_;) {
      if (it->first == wanted_) process_one(it->second, process);
      it = early_.erase(it);
    }
  }

  // What is not acknowledged, in order.
  std::vector<Settled> unsettled() const;
  // Forgets everything; returns what was not acknowledged.
  std::vector<Settled> clear();

  size_t unacknowledged() const noexcept { return items_.size(); }
  bool under_way() const noexcept { return highest_ > base_; }  // something sent is unanswered

 private:
  uint64_t end() const noexcept { return base_ + items_.size(); }
  template <class Process>
  void process_one(const ControlItem& item, Process& process) {
    if (const std::optional<Refusal> refusal = process(item)) {
      refused_.push_back({wanted_, *refusal});
    }
    ++wanted_;
  }
  void forget_refusals(uint64_t below);

  size_t window_;
  // Outgoing: items_[0] has the number base_; next_ is to be sent next; below highest_ all were.
  std::deque<ControlItem> items_;
  uint64_t base_ = 1, next_ = 1, highest_ = 1;
  // Incoming.
  uint64_t wanted_ = 1, peer_base_ = 1;
  std::map<uint64_t, ControlItem> early_;
  std::vector<RefusedItem> refused_;  // from peer_base_ on, in order
  bool ack_due_ = false;
};

}  // namespace farspan::rref
