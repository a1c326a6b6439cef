// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Outbox: writes frames on a stream, and keeps what the stream would not take yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/transport/transport.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// Threading: every method from any thread; frames leave in the order of send().
class Outbox {
 public:
  // kBroken: nothing is written any more; kClosed: and the frame is not kept, either.
  enum class State { kDone, kLeft, kBroken, kClosed };

  // Until open(), frames are only kept. `first` goes out before them: what another outbox had left.
  void open(transport::Stream& stream, std::vector<Buffer> first = {});

  // Writes the frame as far as the stream takes it, and keeps the rest: copied, where a piece has
  // no owner. Fills in the lengths of its header.
  State send(wire::OutFrame& frame);

  // Writes on with what was kept. Does nothing while another thread is at it: kDone as well. That
  // one looks after what it leaves: send() says what, and after give_up() and give_up_offer() comes
  // a flush() of the caller's.
  State flush();

  // Calls that are over: what has not left of their requests is dropped, or copied where a part
  // has, since the memory of their arguments may change from now on.
  struct GivenUp {
    std::vector<uint64_t> dropped;  // requests of which nothing will ever leave
    bool broken = false;            // no memory for a copy: the stream must end
  };
  GivenUp give_up(std::vector<uint64_t> requests);
  // The same for what was asked for of an offer; `dropped` has its id when something was.
  GivenUp give_up_offer(uint64_t offer);

  // For a look without the lock.
  bool has_left() const noexcept { return left_bytes_.load() > 0; }
  uint64_t left_bytes() const noexcept { return left_bytes_.load(); }
  // That the stream took.
  uint64_t sent_bytes() const noexcept { return sent_bytes_.load(std::memory_order_relaxed); }

  // The stream takes nothing any more. Requests are kept from now on, those that come, too: for
  // take_unsent().
  void stop_writing();
  bool is_broken() const noexcept { return broken_.load(); }  // or was told so, or closed
  // Before close(): sends this one in place of all that was kept, unless a frame has begun to
  // leave, which this one would be read as the rest of.
  void send_last(wire::OutFrame& frame);
  // Drops everything; later frames are dropped as well. The stream is not touched after that.
  void close();
  // The same, but returns what was kept.
  std::vector<Buffer> take();
  // The same, but returns the requests of which nothing has left, as they would have gone out.
  struct Unsent {
    uint64_t id = 0;
    std::vector<Buffer> pieces;  // each ends where the head, a segment, or its padding ends
  };
  std::vector<Unsent> take_unsent() noexcept;  // none where there is no memory

 private:
  struct Piece {
    Buffer buffer;
    uint64_t request = 0;   // the id of the call that it is of; 0: of none
    uint64_t offer = 0;     // the offer that it was asked for of; 0: of none
    bool is_first = false;  // of its frame
    size_t done = 0;
  };
  static Piece piece_of(const wire::OutFrame& frame, Buffer buffer, bool is_first);
  template <class IdOfOver>
  GivenUp give_up_if(const IdOfOver& id_of_over);
  State send_small(wire::OutFrame& frame, uint64_t bytes);
  State send_pieces(wire::OutFrame& frame);
  State flush_locked() FARSPAN_REQUIRES(mutex_);
  // Moves what it can of `count` pieces; returns the bytes moved, or -1 when the stream is broken,
  // to which nothing is written any more.
  int64_t write_locked(const iovec* pieces, int count) FARSPAN_REQUIRES(mutex_);
  // Copies a piece without an owner. False: the frame is not kept. There is no memory for it, and
  // nothing is written any more, since the next one would be read as the rest of this one; or it is
  // no request, and nothing was.
  bool keep_locked(Piece piece) FARSPAN_REQUIRES(mutex_);
  State state_locked() const FARSPAN_REQUIRES(mutex_);
  void stop_writing_locked() FARSPAN_REQUIRES(mutex_);

  std::deque<Piece> close_and_take();

  std::atomic<uint64_t> left_bytes_{0}, sent_bytes_{0};
  std::atomic<bool> broken_{false};  // nothing is written any more; set under the lock
  Mutex mutex_;
  transport::Stream* stream_ FARSPAN_GUARDED_BY(mutex_) = nullptr;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;  // nor is anything kept
  std::deque<Piece> left_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::agent
