// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Library: what the nccl backend needs of NCCL: its communicators, and what they do. The real one
// (cuda/), or a simulated one, so that the backend can be tested where there is no GPU.
// Source: NCCL's nccl.h, whose functions these are.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/group/reduce_op.h>

namespace farspan::dist::nccl {

// By which the ranks of a communicator meet; bytes that any message may carry.
using UniqueId = std::array<std::byte, 128>;
// A communicator, as the library calls it.
using Comm = void*;

// Collectives and messages are work of a stream, and begin there when the ranks have all come to
// it; no call waits for that. (The first one between two ranks waits until both have called it, or
// for abort().) A communicator is called by one thread at a time; state() and abort() are called
// meanwhile, and what is called after abort() throws kUnavailable.
//
// throws  Error: kInvalidArgument for what NCCL refuses; kUnavailable: NCCL, the device or its
//         driver fails, with its own words
class Library {
 public:
  enum class State { kBusy, kReady };

  virtual ~Library() = default;

  // Whose streams and memory it works on.
  virtual const std::shared_ptr<device::Devices>& devices() const noexcept = 0;

  virtual UniqueId make_unique_id() = 0;
  // Begins to make one of this rank, on `device`; it is ready when state() says so.
  virtual Comm begin(const UniqueId& id, int device, int rank, int ranks) = 0;
  // Whether all that was called has been begun.
  //   throws  Error kUnavailable: the communicator has failed
  virtual State state(Comm comm) = 0;
  // Ends what is under way, and the communicator. May block for long.
  virtual void abort(Comm comm) noexcept = 0;
  // The same when nothing is under way, and no other call; in some seconds at most.
  //   returns  false: it does not end, and needs abort()
  virtual bool end(Comm comm) noexcept = 0;

  // Whether NCCL reduces such elements so.
  virtual bool reduces(ReduceOp::Kind op, DType type) const noexcept = 0;

  // What one thread calls between these two begins as one.
  virtual void group_begin() = 0;
  virtual void group_end() = 0;

  // Counts are in elements; `in` and `out` may be the same.
  virtual void all_reduce(Comm comm, const void* in, void* out, size_t count, DType type,
                          ReduceOp::Kind op, device::Stream stream) = 0;
  // `out` of the root.
  virtual void reduce(Comm comm, const void* in, void* out, size_t count, DType type,
                      ReduceOp::Kind op, int root, device::Stream stream) = 0;
  // `out` gets the reduction of all ranks' `count` elements at in + rank * count.
  virtual void reduce_scatter(Comm comm, const void* in, void* out, size_t count, DType type,
                              ReduceOp::Kind op, device::Stream stream) = 0;
  // Of bytes, whatever their type.
  virtual void broadcast(Comm comm, void* data, size_t bytes, int root, device::Stream stream) = 0;
  // out + r * bytes is rank r's `in`.
  virtual void all_gather(Comm comm, const void* in, void* out, size_t bytes,
                          device::Stream stream) = 0;
  virtual void send(Comm comm, const void* data, size_t bytes, int peer, device::Stream stream) = 0;
  virtual void recv(Comm comm, void* data, size_t bytes, int peer, device::Stream stream) = 0;
};

// Says what opens the NCCL of this process. A library that brings it calls this when it is loaded.
//
// Threading: any thread.
using OpenLibrary = std::function<std::shared_ptr<Library>()>;
void register_library(OpenLibrary open);

// Opened when this is first called.
//   throws  Error kInvalidArgument: no library has brought any; kUnavailable: what it says
//
// Threading: any thread.
std::shared_ptr<Library> registered_library();

}  // namespace farspan::dist::nccl
