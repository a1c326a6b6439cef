// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Direction: the messages from one rank to another, between devices: in their order, by a
// communicator and a stream that are theirs alone.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/backends/nccl/communicator.h>
#include <farspan/c10d/backends/nccl/exchange.h>
#include <farspan/c10d/backends/nccl/watch.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/group/lane.h>

namespace farspan::dist::nccl {

// One end of it. Both ends give their devices the same messages in the same order, which who sends
// decides: that of the receives that he hears of.
//
// Threading: every method from any thread. Futures complete without a lock.
class Direction : public std::enable_shared_from_this<Direction> {
 public:
  struct Options {
    std::shared_ptr<Library> nccl;
    std::shared_ptr<Backend> control;  // of the same ranks
    int rank;                          // this one, in the group
    int peer;                          // the other end; this one: copies within the device
    Exchange::End end;                 // this one's
    int device;
    std::function<void()> on_work;  // look() has something to look at
    // What a device had been given, or a communicator, has failed.
    std::function<void(const Error& why)> on_failed;
  };
  explicit Direction(Options options) : options_(std::move(options)) {}
  ~Direction();
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  // To be called once, first: hears of the end of the other rank.
  void watch();

  // To send: its receive has been found. It is given to the device next.
  void send(std::shared_ptr<Exchange> exchange);
  // To receive: its send has been found.
  void recv(std::shared_ptr<Exchange> exchange);
  // Both, to this rank itself.
  void copy(std::shared_ptr<Exchange> from, std::shared_ptr<Exchange> to);

  // Whether something is to be looked at again.
  bool look();
  bool is_busy() const;
  // All ends with `why`, and all that comes.
  //   returns  whether something had begun, which the other rank counts on
  bool fail(const Error& why) noexcept;
  // After fail(): waits for the thread that gives devices their work.
  void stop() noexcept;

 private:
  class Task;
  using State = Watched<Direction>;  // when a device has done it
  struct Job {                       // what a lane's task does
    std::shared_ptr<Exchange> exchange;
    std::shared_ptr<Exchange> from = nullptr;                // of a copy
    std::array<std::shared_ptr<const void>, 2> memory = {};  // of both
  };
  struct Launch {
    Job job;
    uint64_t number;  // in this direction, from 1
    std::shared_ptr<State> state;
    SharedEvent done = nullptr;  // null: not given yet
  };
  // What there was to end: kBegun: what the other rank counts on; kAtWork: a device has some of it.
  enum class Ended { kBefore, kIdle, kBegun, kAtWork };

  void await_place();
  void note_place(uint64_t place, uint64_t number);
  void end_unplaced(const Error& why);
  void post_placed_locked() FARSPAN_REQUIRES(mutex_);
  void post_locked(Job job) FARSPAN_REQUIRES(mutex_);
  void give(const Job& job, uint64_t number);
  void give_to_device(const Job& job, uint64_t number);
  void begin_on_device(const Job& job, device::Stream stream);
  void connect();
  UniqueId meet();
  void check() const;
  Launch* find_locked(uint64_t number) FARSPAN_REQUIRES(mutex_);
  bool end_first();
  std::optional<Error> late_locked() const FARSPAN_REQUIRES(mutex_);
  bool is_busy_locked() const FARSPAN_REQUIRES(mutex_) {
    return !under_way_.empty() || !unplaced_.empty();
  }
  void lose(const Error& why);
  Ended end_all(const Error& why) noexcept;
  void fail_and_tell(const Error& why);
  void hold(device::Stream stream, std::shared_ptr<const void> memory) noexcept;
  Error late(const Exchange& exchange, const std::string& what) const;
  std::string call_of(const Launch& launch) const;
  std::string name_of_peer() const { return options_.control->name_of(options_.peer); }
  bool is_copy() const noexcept { return options_.peer == options_.rank; }
  bool sends() const noexcept { return options_.end == Exchange::End::kSend; }
  Message letter(int tag, DType type) const;

  const Options options_;
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  mutable Mutex mutex_;
  std::shared_ptr<Communicator> communicator_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<device::Stream> own_stream_ FARSPAN_GUARDED_BY(mutex_);  // for copies
  uint64_t posted_ FARSPAN_GUARDED_BY(mutex_) = 0;
  // Of receives: those whose place in the order is not known yet, by the number of the message; and
  // the numbers of messages by their places.
  std::map<uint64_t, std::shared_ptr<Exchange>> unplaced_ FARSPAN_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> places_ FARSPAN_GUARDED_BY(mutex_);
  std::deque<Launch> under_way_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> failure_ FARSPAN_GUARDED_BY(mutex_);
  // The other rank is gone: what is under way may end well until then.
  std::optional<Error> lost_ FARSPAN_GUARDED_BY(mutex_);
  Deadline grace_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::nccl
