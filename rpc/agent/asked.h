// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Asked: frames that were offered, and whose segments could not be read: they wait for what was
// asked for. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// The bytes come at once (take()), or in pieces, which several threads read (came()); either way
// straight into their places.
//
// Threading: every method from any thread.
class Asked {
 public:
  // By frame.offer.id. Does nothing after close().
  void keep(wire::InFrame frame);

  // All of it has come some other way, or nothing will. Absent: there is no such frame.
  std::optional<wire::InFrame> take(uint64_t offer);

  // Where one of the offered segments goes that is about to be read, all of it. An empty buffer:
  // nobody waits for it, or a piece of it may be on its way there.
  Buffer place_of_whole(uint64_t offer, size_t segment, size_t bytes);

  // Where a piece goes that is about to be read; an empty buffer: nobody waits for it.
  //   throws  Error kCorrupt: there is no such piece, or it has come before
  Buffer place(uint64_t offer, const wire::PieceHeader& piece, size_t bytes);

  // A piece has been read, to its place or not; the frame, with the last one.
  //   throws  as place()
  std::optional<wire::InFrame> came(uint64_t offer, const wire::PieceHeader& piece,
                                    const Buffer& bytes);

  // Drops all that is kept.
  void close();

 private:
  struct Waiting {
    wire::InFrame frame;
    bool in_pieces = true;
    std::vector<Buffer> places;            // the offered segments
    std::vector<std::vector<bool>> begun;  // pieces of each
    size_t missing = 0;                    // pieces
  };
  Waiting* find_locked(uint64_t offer) FARSPAN_REQUIRES(mutex_);
  static Buffer begin(Waiting& waiting, const wire::PieceHeader& piece, size_t bytes);

  Mutex mutex_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, Waiting> waiting_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::agent
