// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Communicator: one of NCCL's, and the stream that it works on.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/base/error.h>

namespace farspan::dist::nccl {

// Threading: every method from any thread; call() by one at a time.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Which one.
  struct Spec {
    UniqueId id;  // the same on all ranks
    int device;
    int rank;
    int ranks;
  };
  // Returns when all ranks have come.
  //   look    called now and then meanwhile; what it throws ends the wait
  //   throws  as Library, and as `look`
  static std::shared_ptr<Communicator> make(std::shared_ptr<Library> library, const Spec& spec,
                                            const std::function<void()>& look);
  // Needs end() or abort() before, or the library keeps it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const device::Stream& stream() const noexcept { return stream_; }

  // `fn(library, comm)`, behind what `caller` has been given, which goes on behind it.
  //   throws  Error kUnavailable: it has been aborted; else what `fn` does
  template <class Fn>
  void call(device::Stream caller, const Fn& fn) {
    follow(stream_, caller);
    try {
      fn(*library_, comm_);
    } catch (...) {
      // A part may have begun, which the tensors must outlive.
      try {
        follow(caller, stream_);
      } catch (const Error&) {  // the first says why
      }
      throw;
    }
    follow(caller, stream_);
  }
  // The same of what follows no other stream but as the caller has said.
  template <class Fn>
  void call(const Fn& fn) {
    fn(*library_, comm_);
  }
  //   throws  Error kUnavailable: it has failed, and why
  void check();

  // What is under way ends, and nothing else may begin. Does not block: NCCL may take its time, or
  // for ever, in a thread of its own.
  //   memory  held until the stream has done all that it has been given
  void abort(std::shared_ptr<const void> memory = nullptr) noexcept;
  // For when nothing is under way. Blocks for a moment; what does not end by then is aborted, as
  // above.
  void end() noexcept;

 private:
  enum class State { kOpen, kAborted, kEnded };
  Communicator(std::shared_ptr<Library> library, Comm comm, int device);
  void follow(device::Stream later, device::Stream earlier);
  void abort_apart(std::shared_ptr<const void> memory) noexcept;

  const std::shared_ptr<Library> library_;
  const Comm comm_;
  const device::Stream stream_;
  const device::Event place_;  // recorded anew each time: who waits for it stays where it was
  std::atomic<State> state_{State::kOpen};
};

// Holds on to memory until a stream has done all that it has been given. Does not block.
void hold_until_done(std::shared_ptr<device::Devices> devices, device::Stream stream,
                     std::shared_ptr<const void> memory) noexcept;

}  // namespace farspan::dist::nccl
