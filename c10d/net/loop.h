// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Loop: libuv's loop as a source of the reactor. It listens and connects; the descriptors that come
// out of it are the caller's own, and are read and written directly.
#pragma once

#include <sys/socket.h>
#include <uv.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/source.h>
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

// Threading: every method from any thread; libuv runs under one lock, in whichever reactor thread
//            its descriptor fires. Callbacks run after that lock is released, in the same thread,
//            perhaps before the method that led to them returns; they must not block.
// Lifetime:  close() before the reactor stops, whose timers it is given; handles of listeners may
//            go before or after.
class Loop final : public Source {
 public:
  explicit Loop(Timers& timers);
  ~Loop() override;

  int descriptor() const noexcept override { return uv_backend_fd(&loop_); }
  bool pump(Role& role) noexcept override;

  // Stops listening when destroyed.
  class Listening {
   public:
    virtual ~Listening() = default;
  };
  // `on_accept` gets a connected descriptor, which it owns.
  using OnAccept = std::function<void(int fd)>;
  // Listens on a socket that is bound already (a unix one), which the loop takes over in any case.
  std::unique_ptr<Listening> listen_unix(int bound_fd, OnAccept on_accept);
  // Binds and listens; *bound receives the address with the port that was chosen.
  std::unique_ptr<Listening> listen_tcp(const sockaddr* address, OnAccept on_accept,
                                        sockaddr_storage* bound);

  // `on_connect` gets a connected descriptor, which it owns, and 0; or -1 and libuv's error.
  using OnConnect = std::function<void(int fd, int uv_error)>;
  // Returns a ticket for cancel_connect().
  uint64_t connect_tcp(const sockaddr* address, OnConnect on_connect);
  // Ends an attempt that is still under way, with UV_ECANCELED.
  void cancel_connect(uint64_t ticket);

  // Ends all attempts and listeners. Idempotent.
  void close();

 private:
  struct Server;
  struct Attempt;
  struct Handles;
  class ListeningHandle;

  // `prepare` initialises the server's handle and binds it; it returns libuv's status.
  std::unique_ptr<Listening> listen(const std::function<int(Server&, uv_loop_t*)>& prepare,
                                    OnAccept on_accept);
  uint64_t begin_listening(const std::function<int(Server&, uv_loop_t*)>& prepare,
                           OnAccept on_accept);
  void end_listening(uint64_t id);
  uint64_t begin_connect(const sockaddr* address, OnConnect on_connect);
  void end_handles();
  static void accept_one(uv_stream_t* stream, int status) FARSPAN_NO_THREAD_SAFETY_ANALYSIS;
  static void finish_connect(Attempt* attempt, int status) FARSPAN_NO_THREAD_SAFETY_ANALYSIS;
  static void free_attempt(uv_handle_t* handle);
  static void free_server(uv_handle_t* handle);
  // Lets libuv look once; it registers its descriptors in that, too.
  void turn_locked() noexcept FARSPAN_REQUIRES(mutex_);
  // Runs what libuv's callbacks left to be done: after every turn, for nothing wakes a thread for
  // it.
  void run_outcomes();

  Timers& timers_;  // others go on with outcomes there
  Mutex mutex_;
  uv_loop_t loop_;
  std::unique_ptr<Handles> handles_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> outcomes_ FARSPAN_GUARDED_BY(mutex_);
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace farspan::net
