// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Transport: a way to reach another worker (unix sockets, TCP, loopback). Stream: one connection's
// bytes, in order, both ways. Buffers in, bytes out: nothing here knows tensors or frames.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>

namespace farspan::transport {

enum class IoStatus { kOk, kWouldBlock, kClosed, kFailed };

struct IoResult {
  IoStatus status = IoStatus::kOk;
  size_t bytes = 0;  // moved; > 0 exactly when kOk
  int error = 0;     // errno, when kFailed
};

// Threading: one reader and one writer at a time, which may be two threads.
// Lifetime:  its descriptors are closed when it is destroyed.
class Stream {
 public:
  virtual ~Stream() = default;

  // Both move what they can without blocking.
  virtual IoResult read(const iovec* places, int count) noexcept = 0;
  virtual IoResult write(const iovec* pieces, int count) noexcept = 0;

  // Becomes readable when read() has something, or will say that the stream has ended: from
  // expect_input() on, until the next read().
  virtual int read_descriptor() const noexcept = 0;
  // Becomes writable when write() has room, from expect_room() on; another descriptor than the one
  // above. The end of the stream may be told by that one alone.
  virtual int write_descriptor() const noexcept = 0;

  // To be called before one waits for a descriptor: the other end need not tell who does not wait.
  // False when there is something to read (room to write) by now, or the end. Any thread.
  virtual bool expect_input() noexcept { return true; }
  virtual bool expect_room() noexcept { return true; }
  // Nobody waits for read_descriptor() any more, so the other end need not tell.
  virtual void expect_no_input() noexcept {}

  // Ends both directions: what was written before can still be read at the other end, and then both
  // see kClosed. Any thread.
  virtual void shut() noexcept = 0;

  // Whether the other end is on this host for sure.
  virtual bool is_local() const noexcept { return false; }
  // Whether its address is another than this end's, so that the bytes may pass a network.
  virtual bool crosses_network() const noexcept { return false; }
  // Its process, where that is one of this host that this one can name; 0: unknown.
  virtual pid_t peer_process() const noexcept { return 0; }

  // "unix @farspan-12-ab34", for messages.
  virtual std::string describe() const = 0;
};

class Listener {
 public:
  // Stops listening. Connections that were on their way may still be accepted, until the reactor
  // has stopped; over loopback not even those. Not from within its own OnAccept.
  virtual ~Listener() = default;
  // What others pass to Transport::connect: "tcp:127.0.0.1:40721".
  virtual const std::string& endpoint() const noexcept = 0;
};

using OnAccept = std::function<void(std::unique_ptr<Stream>)>;
using OnConnect = std::function<void(std::variant<std::unique_ptr<Stream>, Error>)>;

// Threading: every method from any thread. Callbacks run in a reactor thread, or in the caller's
// before the method returns; they must not block.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const noexcept = 0;

  //   host    the address to bind, numeric ("127.0.0.1", "::1"); transports within a host ignore it
  //   throws  Error kUnavailable (port in use, no such address), kOverloaded (descriptors)
  virtual std::unique_ptr<Listener> listen(const std::string& host, OnAccept on_accept) = 0;

  // Whether an endpoint of this transport can be reached from this process at all.
  virtual bool reaches(const std::string& endpoint) const = 0;

  // Calls `on_connect` once, by the deadline at the latest; never throws for what the network does.
  //   errors  kInvalidArgument (no such endpoint), kUnavailable (nobody there), kTimeout,
  //           kOverloaded (descriptors), kShutdown
  virtual void connect(const std::string& endpoint, Deadline deadline, OnConnect on_connect) = 0;
};

}  // namespace farspan::transport
