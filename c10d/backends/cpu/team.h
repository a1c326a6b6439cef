// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Team: the ranks of a group that share a host. They meet, wait for each other, and fail together,
// in a Segment.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/backends/cpu/segment.h>
#include <farspan/c10d/backends/cpu/waits.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist::cpu {

// Every call begins with enter(): nobody goes on until all have come, so that what a call left in
// the segment may be overwritten by the next. From then on each raises its flags, chunk by chunk,
// and waits for those of others. Whoever waits polls for a while, and then sleeps on a futex.
//
// Ranks here count in the team.
//
// Threading: enter(), raise() and await(): one call at a time. fail() and failure(): any thread.
class Team {
 public:
  using Stage = SharedSeat::Stage;

  // What the team does not know itself.
  struct World {
    std::vector<int> ranks;          // in the default group, by rank here
    std::vector<std::string> names;  // "rank 3 (host:pid)", likewise
    // The calling thread has waited for a while for a rank of the team; may call lose(). May be
    // null.
    std::function<void(int rank)> on_long_wait = nullptr;
    // Follows who waits for whom, from one that has not come in time; may take a while. Null: it is
    // that one.
    std::function<Late(WaitsFor)> find_late = nullptr;
  };
  //   small_bytes  up to this size data travel with the call; kSmallBytes at most
  Team(std::shared_ptr<Segment> segment, size_t small_bytes, int rank, World world);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return segment_->ranks(); }
  // "rank 3 (host:pid)", in the default group.
  const std::string& name_of(int rank) const { return world_.names[static_cast<size_t>(rank)]; }
  Segment& segment() noexcept { return *segment_; }
  size_t small_bytes() const noexcept { return small_bytes_; }

  // Begins a call: shows the others what this rank calls, and waits until all have come.
  //   chunks  that this rank will put; see most_chunks()
  //   throws  Error kShapeMismatch, and what await() throws
  void enter(const Signature& signature, Deadline deadline, uint64_t chunks = 0);
  // Where the data of a small call go, before enter(); then those of each rank.
  std::byte* next_small() noexcept { return segment_->small(rank_, epoch_ + 1); }
  const std::byte* small(int rank) const noexcept { return segment_->small(rank, epoch_); }
  // Of a rank, and the most of all ranks, in this call.
  uint64_t chunks(int rank) const noexcept { return segment_->seat(rank).chunks[epoch_ % 2]; }
  uint64_t most_chunks() const noexcept;

  // In a call: this rank has finished a stage of so many chunks.
  void raise(Stage stage, uint64_t chunks) noexcept;
  // Waits until a rank has.
  //   throws  Error kTimeout (names the rank), and the team's failure
  void await(int rank, Stage stage, uint64_t chunks);
  // All but this one.
  void await_others(Stage stage, uint64_t chunks);

  // For whom this rank waits, in the team or beyond; and what ends it when time is over.
  //   since  when it began to wait
  Waits& waits() noexcept { return waits_; }
  Error late(WaitsFor whom, TimePoint since) const;

  // Ends the calls from this one on, on all ranks. Of several failures the one of the earliest call
  // counts, and of those the first. Does not block.
  void fail(const Error& why, uint64_t since) noexcept;
  void fail_call(const Error& why) noexcept { fail(why, call()); }
  // The rank's process is gone, or has left the group. What does not need it any more goes on.
  void lose(int rank, Absence how = Absence::kGone) noexcept;
  // This rank itself leaves: what is under way here ends with kShutdown.
  void leave() noexcept;
  // Whether all ranks have been in a call, and so have the memory.
  bool have_met() const noexcept { return met_.load(); }
  // The sequence of the call entered last.
  uint64_t call() const noexcept { return call_.load(); }
  bool has_failed(uint64_t call) const noexcept {
    const Failed failed = this->failed();
    return failed.rank >= 0 && failed.since <= call;
  }
  // Whether it was this rank whose failure counts.
  bool failed_first() const noexcept { return failed().rank == rank_; }
  Error failure() const;

 private:
  static constexpr int kChunkBits = 24;
  uint64_t mark(uint64_t chunks) const noexcept { return (epoch_ << kChunkBits) + chunks; }
  SharedSeat& own() const noexcept { return segment_->seat(rank_); }
  bool reached(int rank, Stage stage, uint64_t value) const noexcept {
    return segment_->seat(rank).flags[stage].value.load(std::memory_order_acquire) >= value;
  }
  void publish(Stage stage, uint64_t value) noexcept;
  void wait_for(int rank, Stage stage, uint64_t value);
  void sleep_until(int rank, Stage stage, uint64_t value);
  void wake(int rank) noexcept;
  void check(int waited_for, Stage stage, uint64_t value);
  Failed failed() const noexcept { return Failed::of(segment_->header().failed.load()); }
  WaitsFor whom(int rank, Stage stage) const;

  const std::shared_ptr<Segment> segment_;
  const size_t small_bytes_;
  const int rank_;
  const World world_;
  const bool crowded_;  // more ranks than cores
  uint64_t epoch_ = 0;
  Deadline deadline_;  // of the call
  TimePoint entered_{};
  Waits waits_;
  std::atomic<uint64_t> call_{0};
  std::atomic<bool> left_{false}, met_{false};
  Mutex telling_;
  size_t told_ FARSPAN_GUARDED_BY(telling_) = 0;  // failures that this rank has told of
};

}  // namespace farspan::dist::cpu
