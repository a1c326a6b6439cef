// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Line: a connection on which letters travel.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <farspan/c10d/backends/cpu/post/letter.h>
#include <farspan/c10d/backends/cpu/post/sending.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::dist::cpu {

class Line;

// What a line tells its post. on_letter() and find() come from the one thread that reads the line
// just now, and must be quick.
class LineOwner {
 public:
  virtual void on_letter(Line& line, const Letter& letter, std::span<const std::byte> rest,
                         std::vector<Ending>& endings) = 0;
  // Where a part of a message goes; null: nobody wants it any more.
  virtual std::shared_ptr<Filling> find(const Line& line, uint64_t offer) = 0;
  virtual void on_filled(const Line& line, uint64_t offer, std::vector<Ending>& endings) = 0;
  virtual void on_sent(const Sending& sending) = 0;
  // Once, unless it was closed from this end.
  virtual void on_end(Line& line, const Error& why) = 0;

 protected:
  ~LineOwner() = default;
};

// Threading: every method from any thread. Lifetime: shared by its owner, which holds on to the
//            reactor, and the reactor.
class Line final : public net::Source {
 public:
  Line(net::Reactor& reactor, std::weak_ptr<LineOwner> owner, bool dialled);

  // From now on letters flow; those sent before have waited.
  void open(std::unique_ptr<transport::Stream> stream);

  // The letter leaves at once, or as soon as there is room. `rest` is copied where it must wait.
  //   returns  false when the line has ended
  bool post(Letter letter, std::span<const std::byte> rest = {}) noexcept;
  // The bytes of an accepted message, to be written by write_on(); the owner hears when all have
  // left.
  void add(std::shared_ptr<Sending> sending);
  // As much as there is room for; the rest follows. Then somebody has to tell_news().
  void write_on() noexcept;
  // Its memory is not read after this.
  void give_up(const Sending& sending) noexcept;

  // Waits until all has left, until the deadline at most.
  void drain(Deadline deadline) noexcept;
  void close() noexcept;
  // Ends as if the connection had.
  void end(const Error& why) noexcept;

  bool is_open() const noexcept { return state_ == State::kOpen; }
  bool is_dialled() const noexcept { return dialled_; }
  // The other end's rank in the default group; -1 until it has said so.
  int peer() const noexcept { return peer_.load(); }
  void set_peer(int rank) noexcept { peer_.store(rank); }

  // The process at the other end, whose memory may be read, as far as is known; 0: none.
  pid_t attachable() const noexcept { return attachable_.load(); }
  void forbid_attach(int error) noexcept;

  // The line to the same rank: whoever polls this one writes on that one, too.
  void set_way_back(std::shared_ptr<Line> line) noexcept;

  // What was sent on it, and has not been asked for, as far as is known. False: there is no room.
  bool take_room(uint64_t bytes) noexcept;
  void give_room(uint64_t bytes) noexcept { unclaimed_.fetch_sub(bytes); }
  // At the other end: so many bytes have been asked for.
  void claim(uint64_t bytes) noexcept;

  // net::Source
  int descriptor() const noexcept override { return stream_->read_descriptor(); }
  int write_descriptor() const noexcept override {
    return stream_ ? stream_->write_descriptor() : -1;
  }
  bool expect_input() noexcept override { return stream_->expect_input(); }
  void expect_no_input() noexcept override { stream_->expect_no_input(); }
  bool expect_room() noexcept override { return !stream_ || stream_->expect_room(); }
  bool pump(net::Role& role) noexcept override;
  bool flush() noexcept override;
  bool has_news() const noexcept override {
    return has_sent_ || (has_way_back_ && way_back_->has_sent_);
  }
  void tell_news() noexcept override;

 private:
  enum class State { kOpening, kOpen, kEnded };
  struct Part {  // of a message, on its way
    Letter letter;
    const std::byte* data;
    size_t done;                  // bytes, with those of the letter
    std::shared_ptr<Sending> of;  // null: nobody waits for it any more
    std::vector<std::byte> copy;
  };

  transport::IoResult read_some();
  void take_in(LineOwner& owner, std::vector<Ending>& endings);
  void begin_data(LineOwner& owner, const Letter& letter);
  void data_came(LineOwner& owner, size_t bytes, std::vector<Ending>& endings);
  size_t staged() const noexcept { return staged_end_ - staged_begin_; }

  // False when the line is broken.
  bool write_locked() FARSPAN_REQUIRES(writing_);
  bool next_part_locked() FARSPAN_REQUIRES(writing_);
  int64_t move_locked(const iovec* pieces, int count) FARSPAN_REQUIRES(writing_);
  bool has_left_locked() const FARSPAN_REQUIRES(writing_);
  bool flush_own() noexcept;
  void after_writing(bool intact, bool left) noexcept;
  void tell_own() noexcept;

  net::Reactor& reactor_;
  const std::weak_ptr<LineOwner> owner_;
  const bool dialled_;
  std::atomic<int> peer_{-1};
  std::atomic<pid_t> attachable_{0};
  std::atomic<State> state_{State::kOpening};
  std::atomic<uint64_t> unclaimed_{0}, claimed_{0};
  std::unique_ptr<transport::Stream> stream_;  // constant after open()
  std::shared_ptr<Line> way_back_;             // constant once there is one
  std::atomic<bool> has_way_back_{false};
  // What there is to write and to tell, as far as is known without the lock.
  std::atomic<bool> has_left_{false}, has_sent_{false};

  // Of the holder of the role: what was read and not understood yet, and the data that come.
  std::vector<std::byte> staging_;
  size_t staged_begin_ = 0, staged_end_ = 0;
  std::shared_ptr<Filling> filling_;
  uint64_t data_offer_ = 0, data_at_ = 0, data_left_ = 0;

  Mutex writing_;
  CondVar opened_;  // or ended
  bool may_write_ FARSPAN_GUARDED_BY(writing_) = false;
  std::vector<std::byte> small_ FARSPAN_GUARDED_BY(writing_);  // letters that wait
  size_t small_done_ FARSPAN_GUARDED_BY(writing_) = 0;
  std::optional<Part> part_ FARSPAN_GUARDED_BY(writing_);
  // Messages of which parts are left, perhaps.
  std::deque<std::shared_ptr<Sending>> outgoing_ FARSPAN_GUARDED_BY(writing_);
  std::vector<std::shared_ptr<Sending>> sent_ FARSPAN_GUARDED_BY(writing_);  // and not told yet
};

}  // namespace farspan::dist::cpu
