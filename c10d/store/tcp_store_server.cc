#include <farspan/c10d/store/tcp_store_server.h>

#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <new>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/tcp_service.h>

namespace farspan::dist {
namespace {

constexpr uint64_t kAcceptPauseMs = 100;  // after the descriptors have run out
constexpr int kAcceptsAtOnce = 64;        // then the clients that are here get a turn
constexpr std::chrono::seconds kLogPause{10};

void check_uv(int status, const char* doing) {
  if (status == 0) return;
  const bool full = status == UV_EMFILE || status == UV_ENFILE || status == UV_ENOMEM;
  throw Error(full ? Code::kOverloaded : Code::kInternal,
              std::string(doing) + ": " + uv_strerror(status));
}

template <class Handle>
uv_handle_t* as_handle(Handle* handle) {
  return reinterpret_cast<uv_handle_t*>(handle);
}

}  // namespace

// The loop and what lives on it. Everything but the atomics, stop() and the constructor runs on its
// thread.
class TcpStoreServer::Runner {
 public:
  Runner(std::vector<net::OwnedDescriptor> listening, net::HostPort where, TcpServiceLimits limits);
  ~Runner();
  void stop();
  bool stopped() {
    MutexLock lock(stop_mutex_);
    return stopped_;
  }

  const net::HostPort where;
  std::atomic<size_t> connections{0};
  std::atomic<size_t> waits{0};

 private:
  struct Listener {
    uv_poll_t poll;
    net::OwnedDescriptor fd;
    Runner* runner;
  };
  struct Connection {
    uv_tcp_t socket;
    uv_write_t request;
    std::string sending;  // what `request` writes
    uint64_t id = 0;
    bool reading = false;
    bool closing = false;
    Runner* runner = nullptr;
  };

  void run();
  void end_on_loop();
  void accept_some(Listener& listener);
  void pause_accepting(int error);
  void resume_accepting();
  bool adopt(net::OwnedDescriptor fd);
  void on_bytes(Connection& connection, ssize_t size, const char* bytes);
  void obey(Connection& connection, TcpService::Verdict verdict);
  void send(Connection& connection);
  void sent(Connection& connection, int status);
  void send_touched();
  void drop(Connection& connection);
  void drop_strangers();
  void arm_sweep();
  static void free_connection(uv_handle_t* handle);

  TcpService service_;
  uv_loop_t loop_;
  uv_async_t stop_;
  uv_timer_t sweep_;         // strangers_due()
  uv_timer_t accept_pause_;  // out of descriptors
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<uint64_t, std::unique_ptr<Connection>> open_;
  uint64_t next_id_ = 0;
  TimePoint last_log_{};
  std::array<char, 65536> input_;
  Mutex stop_mutex_;
  bool stopped_ FARSPAN_GUARDED_BY(stop_mutex_) = false;
  std::thread thread_;
};

TcpStoreServer::Runner::Runner(std::vector<net::OwnedDescriptor> listening, net::HostPort at,
                               TcpServiceLimits limits)
    : where(std::move(at)), service_(limits) {
  check_uv(uv_loop_init(&loop_), "cannot make an event loop");
  loop_.data = this;
  for (net::OwnedDescriptor& fd : listening) {
    listeners_.push_back(std::make_unique<Listener>());
    listeners_.back()->fd = std::move(fd);
    listeners_.back()->runner = this;
  }
  // These cannot fail once the loop is there, but for the first, which makes a descriptor.
  const int status = uv_async_init(&loop_, &stop_, [](uv_async_t* async) {
    static_cast<Runner*>(async->loop->data)->end_on_loop();
  });
  if (status != 0) {
    uv_loop_close(&loop_);
    check_uv(status, "cannot make an event loop");
  }
  uv_timer_init(&loop_, &sweep_);
  uv_timer_init(&loop_, &accept_pause_);
  for (auto& listener : listeners_) {
    uv_poll_init_socket(&loop_, &listener->poll, listener->fd.get());
    listener->poll.data = listener.get();
  }
  resume_accepting();
  // The thread takes no signals: handlers run elsewhere, and a client that has gone is an error of
  // the write to it, not a SIGPIPE that ends the process.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  try {
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    end_on_loop();
    run();
    throw Error(Code::kOverloaded, std::string("cannot start a thread: ") + error.what());
  }
}

TcpStoreServer::Runner::~Runner() { stop(); }

void TcpStoreServer::Runner::stop() {
  MutexLock lock(stop_mutex_);
  if (std::exchange(stopped_, true) || !thread_.joinable()) return;
  uv_async_send(&stop_);
  thread_.join();
}

void TcpStoreServer::Runner::run() {
  uv_run(&loop_, UV_RUN_DEFAULT);  // until every handle is closed
  for (auto& listener : listeners_) listener->fd.reset();
  FARSPAN_ASSERT(uv_loop_close(&loop_) == 0, "the store server left handles open");
}

void TcpStoreServer::Runner::end_on_loop() {
  for (auto& listener : listeners_) uv_close(as_handle(&listener->poll), nullptr);
  for (auto& [id, connection] : open_) drop(*connection);
  uv_close(as_handle(&sweep_), nullptr);
  uv_close(as_handle(&accept_pause_), nullptr);
  uv_close(as_handle(&stop_), nullptr);
}

void TcpStoreServer::Runner::resume_accepting() {
  for (auto& listener : listeners_) {
    uv_poll_start(&listener->poll, UV_READABLE, [](uv_poll_t* poll, int, int) {
      auto* self = static_cast<Listener*>(poll->data);
      self->runner->accept_some(*self);
    });
  }
}

void TcpStoreServer::Runner::accept_some(Listener& listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    net::OwnedDescriptor fd(
        accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      if (!adopt(std::move(fd))) return pause_accepting(ENOMEM);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      pause_accepting(errno);
      break;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    }
    // Otherwise the connection ended before it was taken: the next.
  }
  drop_strangers();
}

// The connection stays in the queue, and would be reported again at once, for ever.
void TcpStoreServer::Runner::pause_accepting(int error) {
  for (auto& listener : listeners_) uv_poll_stop(&listener->poll);
  uv_timer_start(
      &accept_pause_,
      [](uv_timer_t* timer) { static_cast<Runner*>(timer->loop->data)->resume_accepting(); },
      kAcceptPauseMs, 0);
  const TimePoint now = Clock::now();
  if (last_log_ != TimePoint{} && now - last_log_ < kLogPause) return;
  last_log_ = now;
  log(LogLevel::kWarning, "store",
      "the store at " + where.to_string() + " cannot take another client: " + std::strerror(error) +
          "; raise the limit of open files (ulimit -n)");
}

// False: no memory for it.
bool TcpStoreServer::Runner::adopt(net::OwnedDescriptor fd) {
  const uint64_t id = next_id_++;
  Connection* connection = nullptr;
  try {
    connection = open_.emplace(id, std::make_unique<Connection>()).first->second.get();
    service_.opened(id, Clock::now());
  } catch (const std::bad_alloc&) {
    open_.erase(id);
    service_.closed(id);
    return false;
  }
  connection->runner = this;
  connection->id = id;
  connections = open_.size();
  net::tune_connection(fd.get());
  uv_tcp_init(&loop_, &connection->socket);
  connection->socket.data = connection;
  if (uv_tcp_open(&connection->socket, fd.get()) != 0) {
    drop(*connection);
    return true;
  }
  fd.release();  // the socket's now
  obey(*connection, TcpService::Verdict::kRead);
  return true;
}

void TcpStoreServer::Runner::obey(Connection& connection, TcpService::Verdict verdict) {
  if (connection.closing) return;
  auto* stream = reinterpret_cast<uv_stream_t*>(&connection.socket);
  const bool read = verdict == TcpService::Verdict::kRead;
  if (verdict == TcpService::Verdict::kClose) {
    // What it was told before its mistake should reach it.
    send(connection);
    return drop(connection);
  }
  if (read == connection.reading) return;
  connection.reading = read;
  if (!read) {
    uv_read_stop(stream);
    return;
  }
  uv_read_start(
      stream,
      [](uv_handle_t* handle, size_t, uv_buf_t* buffer) {
        auto& input = static_cast<Connection*>(handle->data)->runner->input_;
        *buffer = uv_buf_init(input.data(), input.size());
      },
      [](uv_stream_t* source, ssize_t size, const uv_buf_t* buffer) {
        auto& self = *static_cast<Connection*>(source->data);
        self.runner->on_bytes(self, size, buffer->base);
      });
}

void TcpStoreServer::Runner::on_bytes(Connection& connection, ssize_t size, const char* bytes) {
  if (size == 0) return;  // not yet
  if (size < 0) {
    drop(connection);
  } else {
    try {
      obey(connection,
           service_.received(connection.id, std::string_view(bytes, static_cast<size_t>(size))));
    } catch (const std::bad_alloc&) {
      log(LogLevel::kError, "store", "out of memory: closing the connection that asked for more");
      drop(connection);
    }
  }
  send_touched();
}

void TcpStoreServer::Runner::send_touched() {
  while (true) {
    waits = service_.waits();  // before an answer tells of it
    const auto ids = service_.take_touched();
    if (ids.empty()) break;
    for (const uint64_t id : ids) {
      const auto it = open_.find(id);
      if (it != open_.end()) send(*it->second);
    }
  }
  arm_sweep();
}

void TcpStoreServer::Runner::send(Connection& connection) {
  if (connection.closing || !connection.sending.empty()) return;
  auto* stream = reinterpret_cast<uv_stream_t*>(&connection.socket);
  std::string& output = service_.output(connection.id);
  if (output.empty()) return;
  connection.sending.swap(output);
  uv_buf_t buffer =
      uv_buf_init(connection.sending.data(), static_cast<unsigned>(connection.sending.size()));
  const int done = uv_try_write(stream, &buffer, 1);
  if (done == static_cast<int>(connection.sending.size())) return sent(connection, 0);
  if (done < 0 && done != UV_EAGAIN) return drop(connection);
  if (done > 0) {
    buffer.base += done;
    buffer.len -= static_cast<size_t>(done);
  }
  connection.request.data = &connection;
  const int status =
      uv_write(&connection.request, stream, &buffer, 1, [](uv_write_t* request, int result) {
        auto& self = *static_cast<Connection*>(request->data);
        self.runner->sent(self, result);
        self.runner->send_touched();
      });
  if (status != 0) drop(connection);
}

void TcpStoreServer::Runner::sent(Connection& connection, int status) {
  connection.sending.clear();
  if (connection.closing) return;
  if (status != 0) return drop(connection);
  try {
    obey(connection, service_.resume(connection.id));
    service_.touch(connection.id);  // what came while this was under way
  } catch (const std::bad_alloc&) {
    drop(connection);
  }
}

void TcpStoreServer::Runner::drop(Connection& connection) {
  if (std::exchange(connection.closing, true)) return;
  service_.closed(connection.id);
  uv_close(as_handle(&connection.socket), free_connection);
}

void TcpStoreServer::Runner::free_connection(uv_handle_t* handle) {
  auto* connection = static_cast<Connection*>(handle->data);
  Runner& runner = *connection->runner;
  runner.open_.erase(connection->id);
  runner.connections = runner.open_.size();
}

void TcpStoreServer::Runner::drop_strangers() {
  for (const uint64_t id : service_.strangers_due(Clock::now())) {
    const auto it = open_.find(id);
    if (it != open_.end()) drop(*it->second);
  }
  arm_sweep();
}

void TcpStoreServer::Runner::arm_sweep() {
  const Deadline due = service_.next_due();
  if (due.is_never() || uv_is_active(as_handle(&sweep_)) || uv_is_closing(as_handle(&sweep_))) {
    return;
  }
  uv_timer_start(
      &sweep_, [](uv_timer_t* timer) { static_cast<Runner*>(timer->loop->data)->drop_strangers(); },
      static_cast<uint64_t>(due.poll_ms()), 0);
}

TcpStoreServer::TcpStoreServer(std::unique_ptr<Runner> runner) : runner_(std::move(runner)) {}

TcpStoreServer::~TcpStoreServer() = default;

std::shared_ptr<TcpStoreServer> TcpStoreServer::start(const TcpStoreServerOptions& options) {
  const TimePoint begin = Clock::now();
  net::HostPort where{options.host, options.port};
  try {
    auto listening = net::listen_on(where, Deadline::in(options.resolve_timeout));
    const auto bound = net::SocketAddress::local_of(listening.front().get());
    where.port = bound.port();
    if (bound.is_wildcard()) {
      log(LogLevel::kWarning, "store",
          "the store listens on every address of this host (" + where.to_string() +
              "), without authentication");
      where.host = bound.family() == AF_INET ? "127.0.0.1" : "::1";
    }
    TcpServiceLimits limits;
    limits.handshake = options.handshake_timeout;
    return std::shared_ptr<TcpStoreServer>(new TcpStoreServer(
        std::make_unique<Runner>(std::move(listening), std::move(where), limits)));
  } catch (Error& error) {
    error
        .operation("host the store at tcp://" +
                   net::HostPort{options.host, options.port}.to_string())
        .elapsed(Clock::now() - begin);
    throw;
  }
}

std::shared_ptr<TcpStoreServer> TcpStoreServer::shared(const TcpStoreServerOptions& options) {
  if (options.port == 0) return start(options);
  // One port of a host cannot be served twice; so this is about the process, not about who asks.
  static Mutex mutex;
  static std::map<std::string, std::weak_ptr<TcpStoreServer>>& servers =
      *new std::map<std::string, std::weak_ptr<TcpStoreServer>>;
  MutexLock lock(mutex);
  auto& slot = servers[net::HostPort{options.host, options.port}.to_string()];
  auto server = slot.lock();
  if (!server || server->runner_->stopped()) slot = server = start(options);
  return server;
}

net::HostPort TcpStoreServer::where() const { return runner_->where; }
size_t TcpStoreServer::connections() const noexcept { return runner_->connections; }
size_t TcpStoreServer::waits() const noexcept { return runner_->waits; }
void TcpStoreServer::close() { runner_->stop(); }

}  // namespace farspan::dist
