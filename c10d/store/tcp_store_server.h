// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TcpStoreServer: holds the keys of TcpStores. PyTorch's TCPStore may be its client as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>

namespace farspan::dist {

struct TcpStoreServerOptions {
  // Only addresses of this host are bound: loopback by default, never a wildcard unless it is
  // named ("0.0.0.0", "::"). The protocol has no authentication: whoever reaches the port may read
  // and write everything.
  std::string host = "127.0.0.1";
  uint16_t port = 0;                // 0: a free one, see where()
  Millis resolve_timeout{10'000};   // to find the address of `host`
  Millis handshake_timeout{5'000};  // a connection that has not said what it is by then is closed
};

// One thread serves every client, however many there are.
//
// Threading: every method from any thread.
// Lifetime:  close() or the destructor ends the thread; calls of clients that wait then fail at
//            once.
class TcpStoreServer {
 public:
  //   throws  Error kAlreadyExists (the port is in use), kUnavailable (not an address of this
  //   host),
  //           kOverloaded (no descriptors or threads left)
  static std::shared_ptr<TcpStoreServer> start(const TcpStoreServerOptions& options = {});

  // As start(), but returns the one that this process has on that host and port already, if any:
  // two parts of a program may both be told to host the job's store.
  static std::shared_ptr<TcpStoreServer> shared(const TcpStoreServerOptions& options);

  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  // Where clients on this host reach it: the host as given (loopback for a wildcard), the port as
  // bound.
  net::HostPort where() const;
  uint16_t port() const { return where().port; }

  // Connections that are open, and commands of them that wait for keys.
  size_t connections() const noexcept;
  size_t waits() const noexcept;

  // Closes the port and every connection. Idempotent.
  void close();

 private:
  class Runner;
  explicit TcpStoreServer(std::unique_ptr<Runner> runner);
  const std::unique_ptr<Runner> runner_;
};

}  // namespace farspan::dist
