// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Clique: the ranks of one simulated communicator, and how their operations meet.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::nccl {

// What ranks must have in common for their operations to meet.
struct Match {
  enum class Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kMessage };
  Kind kind;
  size_t count;  // of elements; of bytes for what is only moved
  DType type = {};
  ReduceOp::Kind op = {};
  int root = 0;  // of a message: from whom
  int peer = 0;  // of a message: to whom
  // The number of this collective among all, or of this message from its rank to the other one.
  uint64_t number = 0;

  auto operator<=>(const Match&) const = default;
};

// One call of one rank. Host memory stands between the device and the other ranks.
struct Operation {
  // From where to where on the device.
  struct Bytes {
    const void* in = nullptr;
    size_t in_bytes = 0;
    void* out = nullptr;
    size_t out_bytes = 0;
  };
  Operation(const Match& of, int of_rank, size_t at_place, const Bytes& bytes)
      : match(of),
        rank(of_rank),
        place(at_place),
        in(bytes.in),
        out(bytes.out),
        given(bytes.in_bytes),
        result(bytes.out_bytes) {}

  Match match;
  int rank;
  size_t place;  // among its equals: its rank; of a message: 0, who sends it, or 1
  const void* in;
  void* out;
  std::vector<std::byte> given, result;
  bool has_met = false;
};

// What a stream does at once: the operations of one call, or of a group of them.
struct Kernel {
  int rank = 0;
  device::Stream stream;
  std::vector<Operation> operations;
  uint64_t turn = 0;  // those of one group have one
};

// Threading: every method from any thread; those of "a stream" block, and are called in that of the
// kernel's stream. Until run() returns, the buffers of a kernel's operations are of all of these.
class Clique {
 public:
  explicit Clique(int ranks) : ranks_(ranks), seats_(static_cast<size_t>(ranks)) {}

  int ranks() const noexcept { return ranks_; }
  // False: this rank has come before.
  bool join(int rank);
  bool is_complete() const;
  // Whether this rank has kernels that are not done.
  bool is_at_work(int rank) const;
  // This rank's kernels end, now and in future, with garbage. The other ranks wait on.
  void abort(int rank);

  // Before the first collective of a kind, and the first message from one rank to another: waits
  // until the others have come so far, as NCCL does to connect. False: this rank was aborted.
  bool connect(std::span<const std::shared_ptr<Kernel>> kernels);
  // These are the next ones of their rank: numbers their operations.
  void enlist(std::span<const std::shared_ptr<Kernel>> kernels);
  // Of a stream: the kernels of earlier turns are done, of which a communicator has one at a time.
  void wait_for_turn(const Kernel& kernel);
  // Of a stream: until every operation has met its equals, and has its result.
  void run(Kernel& kernel);
  // Of a stream: it is done.
  void finish(const Kernel& kernel);

 private:
  struct Seat {
    bool is_taken = false;
    bool is_aborted = false;
    uint64_t turns = 0;
    uint64_t collectives = 0;
    std::array<std::map<int, uint64_t>, 2> messages;  // sent and received, by the other rank
    std::multiset<uint64_t> under_way;                // turns of its kernels
  };

  Seat& seat_locked(int rank) FARSPAN_REQUIRES(mutex_) { return seats_[static_cast<size_t>(rank)]; }
  void come_locked(Operation& operation) FARSPAN_REQUIRES(mutex_);

  // A kind of collective; or a message, from whom and to whom.
  using Connection = std::array<int, 3>;
  static Connection connection_of(const Match& match);

  const int ranks_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<Connection, std::set<int>> connected_ FARSPAN_GUARDED_BY(mutex_);  // who has come
  std::vector<Seat> seats_ FARSPAN_GUARDED_BY(mutex_);
  // Those that wait for others, by place.
  std::map<Match, std::vector<Operation*>> came_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::nccl
