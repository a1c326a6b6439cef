// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Sending and Filling: a message that goes out, and one that comes in, too large to travel at once.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include <farspan/c10d/backends/messages/receive.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist::cpu {

class Post;

// The future of who sends; its value is the receiver's rank in the group.
//
// Threading: as FutureState; the rest is constant.
class Sending final : public detail::FutureState<int> {
 public:
  Sending(std::shared_ptr<Post> post, uint64_t number, uint64_t group_id, int to_rank,
          int own_place, const Message& to, Block what)
      : id(number),
        group(group_id),
        rank(to_rank),
        envelope{own_place, to.tag, to.type, what.count},
        message(to),
        data(what),
        post_(std::move(post)) {}

  const uint64_t id;
  const uint64_t group;
  const int rank;  // to whom, in the default group
  const messages::Envelope envelope;
  const Message message;
  const Block data;
  const TimePoint begun = Clock::now();

 protected:
  bool block(Deadline deadline) override;

 private:
  const std::shared_ptr<Post> post_;
};

// Where the bytes of an accepted message go. Who waits for them may give up meanwhile: nothing is
// written there after that.
//
// Threading: every method from any thread.
class Filling {
 public:
  Filling(std::shared_ptr<messages::Receive> receive, int from_place)
      : from(from_place),
        receive_(std::move(receive)),
        place_(receive_->place.data),
        size_(receive_->place.count * size_of(receive_->wanted.type)),
        left_(size_) {}

  const int from;  // rank in the group

  const std::shared_ptr<messages::Receive>& receive() const noexcept { return receive_; }
  uint64_t size() const noexcept { return size_; }

  void give_up() {
    MutexLock lock(mutex_);
    place_ = nullptr;
  }
  // Calls write(place) with where the byte number `offset` goes, or null, unless given up; returns
  // what it does.
  template <class Write>
  auto write_at(uint64_t offset, const Write& write) {
    MutexLock lock(mutex_);
    return write(place_ ? place_ + offset : nullptr);
  }
  // So many bytes have come; true when none is left.
  bool came(uint64_t bytes) {
    MutexLock lock(mutex_);
    left_ -= std::min(bytes, left_);
    return left_ == 0;
  }

 private:
  const std::shared_ptr<messages::Receive> receive_;
  Mutex mutex_;
  std::byte* place_ FARSPAN_GUARDED_BY(mutex_);
  const uint64_t size_;
  uint64_t left_ FARSPAN_GUARDED_BY(mutex_);
};

// How an operation has ended; told when no lock and no role is held.
struct Ending {
  std::shared_ptr<detail::FutureState<int>> future;
  int value = -1;
  std::optional<Error> error = {};

  void tell() {
    if (error) {
      future->set_error(std::move(*error));
    } else {
      future->set_value(value);
    }
  }
};

}  // namespace farspan::dist::cpu
