// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// HostLine: a unix socket to another rank of this host. It brings the shared memory of groups, and
// its end says that the other process is gone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/reactor.h>

namespace farspan::dist::cpu {

// What travels on it, as it lies in memory: both ends are one host.
struct HostMessage {
  enum Kind : uint32_t {
    kHello = 1,  // the first of who connects: `rank` is its own, in the default group
    kAsk = 2,    // for the shared memory of the group `id`
    kGive = 3,   // it, with its descriptor
    kLeft = 4,   // `rank` has left the group `id`, or has never come to it
  };
  static constexpr uint32_t kMagic = 0x48535046;

  uint32_t magic = kMagic;
  Kind kind = kHello;
  uint64_t id = 0;
  int32_t rank = -1;
  uint32_t unused = 0;
};

// Threading: send() from any thread; the callbacks run in a reactor's thread, one at a time.
// Lifetime:  the reactor outlives it; close() before it is let go.
class HostLine final : public net::Source {
 public:
  using OnMessage = std::function<void(HostLine&, const HostMessage&, net::OwnedDescriptor)>;
  using OnEnd = std::function<void(HostLine&)>;  // once, for whatever reason but close()

  HostLine(net::Reactor& reactor, net::OwnedDescriptor socket, OnMessage on_message, OnEnd on_end);

  // Begins to read, and to watch the process at the other end: a child of it may keep the socket
  // open after its death.
  void open();
  bool is_open() const noexcept;
  // False when the line has ended. A message is small: it never blocks, and a peer that does not
  // read for so long that its buffer is full counts as gone.
  bool send(const HostMessage& message, int descriptor = -1) noexcept;
  void close() noexcept;

  // The other end's rank in the default group; -1 until it has said so.
  int peer() const noexcept { return peer_.load(); }
  void set_peer(int rank) noexcept { peer_.store(rank); }

  int descriptor() const noexcept override { return socket_.get(); }
  bool pump(net::Role& role) noexcept override;

 private:
  class ProcessWatch;
  enum class Got { kNothing, kMessage, kEnd };
  Got receive(HostMessage& message, net::OwnedDescriptor& descriptor) noexcept;
  bool stop_reading() noexcept;
  void end() noexcept;

  net::Reactor& reactor_;
  const net::OwnedDescriptor socket_;
  const OnMessage on_message_;
  const OnEnd on_end_;
  std::atomic<int> peer_{-1};
  mutable Mutex opening_;
  bool is_open_ FARSPAN_GUARDED_BY(opening_) = false;
  bool closed_ FARSPAN_GUARDED_BY(opening_) = false;
  std::shared_ptr<net::Source> process_ FARSPAN_GUARDED_BY(opening_);  // its end; may be null
  Mutex sending_;
  // Of the holder of the role: a message of which a part has come.
  std::array<std::byte, sizeof(HostMessage)> part_;
  size_t have_ = 0;
  net::OwnedDescriptor brought_;
};

// Connects to a net::NamedSocket; it answers at once, unless its backlog is full.
//   throws  Error kDisconnected (nobody listens there), kTimeout, kOverloaded
net::OwnedDescriptor dial_host_socket(const std::string& name, Deadline deadline);

}  // namespace farspan::dist::cpu
