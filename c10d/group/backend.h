// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Backend: how the ranks of one group exchange bytes. What lies above, checks of arguments, order,
// asynchronous operations, memory of failures, is the group's, and the same for every backend.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/group/signature.h>

namespace farspan::dist {

class Store;

// Elements that lie one after the other. The memory is the caller's, until the call has ended.
struct Block {
  std::byte* data = nullptr;
  size_t count = 0;
};

// A collective of a device's memory, as work of a stream.
struct DeviceCall {
  device::Stream stream;
  // Set by the backend, when the stream has been given it: ready when the device has done it, or
  // when it has been given up, with why.
  Future<int> ended;
};

// One collective, as one rank calls it.
struct Call {
  Signature signature;
  DType type = {};    // of the blocks: the signature's, unless an operation takes several calls
  double factor = 1;  // of PREMUL_SUM
  Deadline deadline;
  // Null: blocks are memory of the processor. Else of that stream's device, and the call returns
  // when the stream has been given it: what it is given then comes after it. The parts of an
  // all_gather or a reduce_scatter lie one after the other then, where they have one size.
  DeviceCall* on_device = nullptr;

  ReduceOp::Kind reduce() const noexcept { return static_cast<ReduceOp::Kind>(signature.reduce); }
  int root() const noexcept { return signature.root; }
};

// A message of a device's memory, and how it goes on there.
struct DeviceMessage {
  // What it has been given when the message is called comes before it.
  device::Stream stream;
  // Kept until no device uses it any more: whatever holds on to the block.
  std::shared_ptr<const void> memory = {};
  // Nobody else writes the memory: a send to itself need not wait for its receive.
  bool is_own = false;
  // Set by the backend, when the message's future is ready and has no error: has a stream wait for
  // its end, and what DeviceCall::ended is.
  std::function<void(device::Stream)> hold_up = {};
  Future<int> ended = {};
};

// A message from one rank to another.
struct Message {
  int peer = -1;  // rank in the group; to receive: -1 for any
  int tag = 0;
  DType type = {};
  Deadline deadline;
  // Null: the block is memory of the processor. Else of that stream's device, and the message's
  // future is ready when the device has been given it.
  std::shared_ptr<DeviceMessage> on_device = nullptr;
  // Of the cpu backend: the block's elements are a device's, and go another way. What goes this way
  // is a number beside them, from where the sender has it to where the receiver wants it; it goes
  // to a receive that is for such elements, too, and is not sent before that is there.
  uint64_t* announced_by = nullptr;
};

inline constexpr const char* kDefaultGroup = "the default group";

// The ranks of a group and this one among them.
struct GroupSpec {
  std::string name;                   // the same on all its ranks, and used once
  std::vector<int> ranks;             // in the default group, by rank in this one
  int rank = 0;                       // in this group
  std::string label = kDefaultGroup;  // for people, in errors

  int size() const noexcept { return static_cast<int>(ranks.size()); }
  // 64 bits of the name, for what travels.
  uint64_t id() const noexcept;
};

// Collectives block until this rank's part is done: then its results are there, and its blocks may
// be used again. The group calls one at a time, in the same order on each rank, from any thread.
// Blocks of one rank may be the same memory where that makes sense (in and out of its own part).
//
// A call that fails on one rank ends on all that are in it or come to it, and so does each later
// one. Ranks that are still in an earlier call finish that: all that it needs of the others is
// done.
//
//   throws  Error, and the group is of no use after that: kTimeout (names who is waited for),
//           kDisconnected (names who is gone), kShapeMismatch (what the ranks disagree on),
//           kCancelled (abort)
//
// Threading: collectives: see above. All else: any thread, also meanwhile.
class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu".
  virtual std::string_view name() const noexcept = 0;
  // A rank of the group as errors name it: "rank 3 (host:pid)", in the default group.
  virtual std::string name_of(int rank) const = 0;

  // The kind of devices, as Devices::kind() says it, whose memory blocks may be; empty: none, and
  // the group copies such tensors to memory of the processor and back.
  virtual std::string_view device_kind() const noexcept { return {}; }
  // Why it cannot reduce such memory; empty: it can.
  virtual std::string why_not_on_device(ReduceOp::Kind, DType) const { return {}; }
  // Whether it can work on the stream's device now.
  //   throws  Error kInvalidArgument
  virtual void check_device(device::Stream) const {}

  // Whether the next call on a device waits for other ranks, as the first one of a group does. (So
  // may the first of a kind, where it connects.) Else it only gives the device work.
  virtual bool waits_on_device() const noexcept { return true; }

  // The root's data comes to all.
  virtual void broadcast(const Call& call, Block data) = 0;
  // In place, on all ranks.
  virtual void all_reduce(const Call& call, Block data) = 0;
  // In place at the root; the others' data stay as they are.
  virtual void reduce(const Call& call, Block data) = 0;
  // out[r] is rank r's `in`, on all ranks.
  virtual void all_gather(const Call& call, Block in, std::span<const Block> out) = 0;
  // out[r] is rank r's `in`, at the root; elsewhere `out` is empty.
  virtual void gather(const Call& call, Block in, std::span<const Block> out) = 0;
  // `out` is the root's in[r], for r this rank; `in` is empty but at the root.
  virtual void scatter(const Call& call, std::span<const Block> in, Block out) = 0;
  // `out` is the reduction of all ranks' in[r], for r this rank.
  virtual void reduce_scatter(const Call& call, std::span<const Block> in, Block out) = 0;
  // out[r] is rank r's in[q], for q this rank. Throws kShapeMismatch where their sizes differ.
  virtual void all_to_all(const Call& call, std::span<const Block> in,
                          std::span<const Block> out) = 0;
  // Returns when all have called it.
  virtual void barrier(const Call& call) = 0;

  // Messages with one tag from one rank to another arrive in the order in which they were sent.
  // The future is ready when `data` may be used again; whether the receiver has asked for it by
  // then is not said. Its value is the other rank. Errors fail the future only.
  virtual Future<int> send(const Message& message, Block data) = 0;
  // kShapeMismatch when what comes has another type or size, or is on a device where this is not.
  virtual Future<int> recv(const Message& message, Block data) = 0;

  // Ends messages and collectives that are under way, here and on the other ranks, and all that
  // come, with `why`. Does not block; the first of the earliest collective counts.
  //   since  the sequence of the first collective that ends: what is before goes on
  virtual void abort(const Error& why, uint64_t since) noexcept = 0;

  // Waits until devices have ended what they have been given, which others may need: its callers
  // have gone on.
  virtual void finish(Deadline) noexcept {}

  // This rank calls nothing more: what is under way here ends with kShutdown. Other ranks that need
  // it see that it has left. Does not block.
  virtual void leave() noexcept = 0;

  // The same way to exchange bytes among some of its ranks. Local: no rank is asked.
  //   spec  its ranks count in the default group
  virtual std::shared_ptr<Backend> subgroup(GroupSpec spec) = 0;
};

// What a backend of the default group is made from.
struct BackendContext {
  std::shared_ptr<Store> store;  // of this start of the job alone; null after MeetRanks
  GroupSpec group;
  Deadline deadline;  // until all ranks have come
  // For backends that use the network: the numeric address to listen on, which other hosts reach.
  // Empty: that of this host on the way to the store's.
  std::string bind_host;
  // Ranks with the same one share memory. Empty: net::host_id().
  std::string host_id;
};
using MakeBackend = std::function<std::shared_ptr<Backend>(const BackendContext& context)>;

// For a backend whose launcher numbers the ranks: meets them, and says who this one is, so that no
// store is needed. The name of the group is new in each start.
using MeetRanks = std::function<GroupSpec(Deadline deadline)>;

// Makes a backend known by name, for the process and for good.
//   meet    null: its ranks meet in a store
//   throws  Error kAlreadyExists
void register_backend(const std::string& name, MakeBackend make, MeetRanks meet = nullptr);
//   throws  Error kInvalidArgument: names those that are known
void check_backend(const std::string& name);
MeetRanks meeting_of_backend(const std::string& name);
std::shared_ptr<Backend> make_backend(const std::string& name, const BackendContext& context);

}  // namespace farspan::dist
