// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Messages from one rank to another: send, recv, isend, irecv, several at once; and a barrier that
// says who did not come.
// Source: PyTorch's torch.distributed, whose names and meanings these are; where we differ:
// c10d/group/README.md.
//
// Messages of one rank to another with one tag arrive in the order in which they were sent. They do
// not wait for collectives of the group, nor those for them.
//
//   tensors  as in collectives.h; type and number of elements are the same at both ends
//   ranks    dst, src: in the default group; a rank may send to itself
//   tag      from 0; a receive takes only messages with its own
//   throws   Error: kInvalidArgument (arguments that make no sense), kShapeMismatch (what came has
//            another type or size), kTimeout (names who is waited for), kDisconnected (names who is
//            gone, or has left the group), kCancelled, kShutdown. They end this operation only: the
//            group can be used on. After a collective of the group has failed, messages fail, too.
//
// Threading: any thread. Two that receive at once, with one source and tag, get one message each.
#pragma once

#include <ATen/core/TensorBody.h>

#include <optional>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/group/work.h>

namespace farspan::dist {

inline constexpr int kAnySource = -1;

struct MessageOptions {
  Group group = nullptr;  // null: the default group
  int tag = 0;
  std::optional<Millis> timeout = {};  // absent: the group's; kNoTimeout: none
};

// Returns when the tensor may be changed again. That says nothing of whether it has been received:
// small ones are kept by the receiver, and a large one's send ends with its receive. So a rank that
// sends to itself, and receives next, does so for small ones only; for others: isend, or a batch.
//
// Of a device's tensors with nccl: to another rank it returns when that receives, whatever the
// size, and no device is waited for. See Work::wait(), also for what fails on a device later: that
// is the group's failure.
void send(const at::Tensor& tensor, int dst, const MessageOptions& options = {});
// The same, which returns at once; the tensor must not be changed until it has ended.
Work isend(const at::Tensor& tensor, int dst, const MessageOptions& options = {});

// Fills the tensor with the next message.
//   src      kAnySource: from whichever rank, as long as one of the others is there. Who leaves the
//            group is waited for no more; the death of a rank ends with kDisconnected, which names
//            it, the receives that wait, or else the next one, so that it is noticed; those after
//            that go on
//   returns  the rank that sent it
int recv(const at::Tensor& tensor, int src = kAnySource, const MessageOptions& options = {});
// Work::source_rank() is the rank that sent it.
Work irecv(const at::Tensor& tensor, int src = kAnySource, const MessageOptions& options = {});

// One of several.
struct P2POp {
  enum class Kind { kSend, kRecv };
  Kind kind;
  at::Tensor tensor;
  int peer;  // rank in the default group; to receive: or kAnySource
  MessageOptions options = {};
};
// Begins all of them; none waits for another, so two ranks that exchange tensors need no order.
// When one makes no sense, none is begun.
//   returns  a Work for each, in order
[[nodiscard]] std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations);

struct MonitoredBarrierOptions {
  Group group = nullptr;
  std::optional<Millis> timeout = {};
  bool wait_all_ranks = false;  // name all that are missing, and not only the first
};
// Returns when all ranks are in it; rank 0 of the group waits for each of them, and tells them.
//
// Each rank counts its calls on a group, and only calls with the same number meet. Who comes to one
// that the others have given up gets an error, soon, and meets them with the call that has their
// number: so all ranks call it equally often, those that failed, too.
//
//   throws  Error kTimeout: it names who did not come in time, or has given it up before rank 0
//           came: on rank 0 all that are known, on the others the first of them, and how many.
//           They hear of it from rank 0, up to a second after their own deadline
//           Error kDisconnected: on rank 0, when one of them has left the group, or has died
//   cost    three to five small messages for each other rank
void monitored_barrier(const MonitoredBarrierOptions& options = {});

}  // namespace farspan::dist
