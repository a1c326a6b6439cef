// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Sending and Filling: a message that goes out, and one that comes in, which is offered first.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <farspan/c10d/backends/cpu/post/letter.h>
#include <farspan/c10d/backends/messages/receive.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist::cpu {

class Post;
class Pull;

// The future of who sends; its value is the receiver's rank in the group.
//
// Threading: as FutureState; the rest is constant.
class Sending final : public detail::FutureState<int> {
 public:
  Sending(std::shared_ptr<Post> post, uint64_t number, uint64_t group_id, int to_rank,
          uint64_t own_mark, int own_place, const Message& to, Block what)
      : id(number),
        group(group_id),
        rank(to_rank),
        envelope{own_place, to.tag, to.type, what.count, to.announced_by != nullptr},
        message(to),
        data(messages::travels(to, what)),
        post_(std::move(post)),
        mark_(own_mark),
        standing_mark_(own_mark) {}
  ~Sending() override { withdraw_mark(); }

  const uint64_t id;
  const uint64_t group;
  const int rank;  // to whom, in the default group
  const messages::Envelope envelope;
  const Message message;
  const Block data;
  const TimePoint begun = Clock::now();
  std::atomic<bool> is_accepted{false};

  // Where the receiver can read it while the mark stands: withdrawn before the memory can change.
  Origin origin() const noexcept {
    return {reinterpret_cast<uintptr_t>(data.data), reinterpret_cast<uintptr_t>(&standing_mark_),
            mark_};
  }
  // An exchange, which what is written afterwards does not overtake.
  void withdraw_mark() noexcept { standing_mark_.exchange(0, std::memory_order_seq_cst); }

  // Its bytes in parts, which may leave on several lines at once.
  struct Range {
    uint64_t begin, size;
  };
  std::optional<Range> next_part(uint64_t size) noexcept {
    const uint64_t begin = next_.fetch_add(size);
    if (begin > 0 && begin >= envelope.bytes()) return std::nullopt;  // an empty one has one part
    return Range{begin, std::min(size, envelope.bytes() - begin)};
  }
  // So many bytes have left; true when none is left.
  bool left(uint64_t bytes) noexcept { return left_.fetch_add(bytes) + bytes == envelope.bytes(); }

 protected:
  bool block(Deadline deadline) override;

 private:
  const std::shared_ptr<Post> post_;
  const uint64_t mark_;
  std::atomic<uint64_t> standing_mark_;
  std::atomic<uint64_t> next_{0}, left_{0};
};

// Where the bytes of an accepted message go, from several lines at once. Who waits for them may
// give up meanwhile: nothing is written there after that.
//
// Threading: every method from any thread.
class Filling {
 public:
  Filling(std::shared_ptr<messages::Receive> receive, int from_place)
      : from(from_place),
        receive_(std::move(receive)),
        place_(receive_->place.data),
        size_(receive_->bytes()),
        left_(size_) {}

  const int from;  // rank in the group

  // Under the post's lock, as give_up().
  const std::shared_ptr<messages::Receive>& receive() const noexcept { return receive_; }
  uint64_t size() const noexcept { return size_; }

  // Nothing more is written. Lets go of the receive, which knows its post, and returns it.
  std::shared_ptr<messages::Receive> give_up() {
    MutexLock lock(mutex_);
    place_ = nullptr;
    while (writers_ > 0) idle_.wait(mutex_);  // each for a short piece
    return std::move(receive_);
  }
  // Calls write(place) with where the byte number `offset` goes, or null, unless given up; returns
  // what it does.
  template <class Write>
  auto write_at(uint64_t offset, const Write& write) {
    struct Writing {
      Filling& filling;
      std::byte* place;
      explicit Writing(Filling& one) : filling(one), place(one.begin_writing()) {}
      ~Writing() { filling.end_writing(); }
    };
    const Writing writing(*this);
    return write(writing.place ? writing.place + offset : nullptr);
  }
  // So many bytes have come; true when none is left.
  bool came(uint64_t bytes) {
    MutexLock lock(mutex_);
    left_ -= std::min(bytes, left_);
    return left_ == 0;
  }

 private:
  std::byte* begin_writing() {
    MutexLock lock(mutex_);
    ++writers_;
    return place_;
  }
  void end_writing() {
    MutexLock lock(mutex_);
    if (--writers_ == 0) idle_.notify_all();
  }

  std::shared_ptr<messages::Receive> receive_;
  Mutex mutex_;
  CondVar idle_;
  int writers_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::byte* place_ FARSPAN_GUARDED_BY(mutex_);
  const uint64_t size_;
  uint64_t left_ FARSPAN_GUARDED_BY(mutex_);
};

// How an operation has ended, or how it goes on; told when no lock and no role is held.
struct Ending {
  std::shared_ptr<detail::FutureState<int>> future;
  int value = -1;
  std::optional<Error> error = {};
  std::function<void()> go_on = {};

  void tell() {
    if (go_on) {
      go_on();
    } else if (error) {
      future->set_error(std::move(*error));
    } else {
      future->set_value(value);
    }
  }
};

}  // namespace farspan::dist::cpu
