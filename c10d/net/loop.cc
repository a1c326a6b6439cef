#include <farspan/c10d/net/loop.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

#include <farspan/c10d/net/batch.h>
#include <farspan/c10d/net/descriptor.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {
namespace {

constexpr int kBacklog = 512;

// A descriptor of the caller's own for the socket of a libuv handle, which is to be closed.
int duplicate_of(uv_handle_t* handle) noexcept {
  uv_os_fd_t fd = -1;
  if (uv_fileno(handle, &fd) != 0) return -1;
  return duplicate(fd);
}

Error uv_failure(int status, const char* what) {
  return Error(Code::kUnavailable, std::string(what) + ": " + uv_strerror(status));
}

}  // namespace

struct Loop::Server {
  Loop* loop;
  uint64_t id;
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_pipe_t pipe;
    uv_tcp_t tcp;
  };
  bool is_tcp = false;
  std::shared_ptr<const OnAccept> on_accept;
};

struct Loop::Attempt {
  Loop* loop;
  uint64_t id;
  uv_tcp_t tcp;
  uv_connect_t request;
  OnConnect on_connect;
};

struct Loop::Handles {
  uint64_t next_id = 1;
  std::map<uint64_t, Server*> servers;  // freed by libuv's close callback
  std::map<uint64_t, Attempt*> attempts;
};

class Loop::ListeningHandle final : public Loop::Listening {
 public:
  ListeningHandle(std::shared_ptr<Loop> loop, uint64_t id) : loop_(std::move(loop)), id_(id) {}
  ~ListeningHandle() override {
    loop_->end_listening(id_);
    loop_->run_outcomes();
  }

 private:
  const std::shared_ptr<Loop> loop_;
  const uint64_t id_;
};

Loop::Loop(Timers& timers) : timers_(timers), handles_(std::make_unique<Handles>()) {
  const int status = uv_loop_init(&loop_);
  if (status != 0) throw uv_failure(status, "uv_loop_init").advice("raise ulimit -n");
}

Loop::~Loop() {
  close();
  uv_loop_close(&loop_);
}

void Loop::turn_locked() noexcept { uv_run(&loop_, UV_RUN_NOWAIT); }

void Loop::run_outcomes() {
  std::vector<std::function<void()>> outcomes;
  {
    MutexLock lock(mutex_);
    outcomes.swap(outcomes_);
  }
  Batch(
      timers_, std::move(outcomes), [](const auto& outcome) { outcome(); }, [] {})
      .run();
}

bool Loop::pump(Role& role) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed_) turn_locked();
    if (outcomes_.empty()) return false;
  }
  role.may_lease(false);  // nobody comes back soon
  role.release();
  run_outcomes();
  return true;
}

void Loop::close() {
  end_handles();
  run_outcomes();
}

void Loop::end_handles() {
  MutexLock lock(mutex_);
  if (std::exchange(closed_, true)) return;
  for (auto& [id, server] : handles_->servers) {
    uv_close(&server->handle, &Loop::free_server);
  }
  handles_->servers.clear();
  for (auto& [id, attempt] : handles_->attempts) {
    uv_close(reinterpret_cast<uv_handle_t*>(&attempt->tcp), &Loop::free_attempt);
  }
  while (uv_run(&loop_, UV_RUN_NOWAIT) != 0) {  // the close callbacks; none of them waits
  }
}

void Loop::end_listening(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = handles_->servers.find(id);
  if (found == handles_->servers.end()) return;  // close() was quicker
  Server* server = found->second;
  handles_->servers.erase(found);
  uv_close(&server->handle, &Loop::free_server);
  turn_locked();
}

std::unique_ptr<Loop::Listening> Loop::listen_unix(int bound_fd, OnAccept on_accept) {
  OwnedDescriptor bound(bound_fd);
  return listen(
      [&bound](Server& server, uv_loop_t* loop) {
        uv_pipe_init(loop, &server.pipe, 0);
        const int status = uv_pipe_open(&server.pipe, bound.get());
        if (status == 0) bound.release();
        return status;
      },
      std::move(on_accept));
}

std::unique_ptr<Loop::Listening> Loop::listen_tcp(const sockaddr* address, OnAccept on_accept,
                                                  sockaddr_storage* bound) {
  return listen(
      [&](Server& server, uv_loop_t* loop) {
        server.is_tcp = true;
        uv_tcp_init(loop, &server.tcp);
        int status = uv_tcp_bind(&server.tcp, address, 0);
        int size = sizeof *bound;
        if (status == 0) {
          status = uv_tcp_getsockname(&server.tcp, reinterpret_cast<sockaddr*>(bound), &size);
        }
        return status;
      },
      std::move(on_accept));
}

std::unique_ptr<Loop::Listening> Loop::listen(
    const std::function<int(Server&, uv_loop_t*)>& prepare, OnAccept on_accept) {
  const uint64_t id = begin_listening(prepare, std::move(on_accept));
  run_outcomes();
  return std::make_unique<ListeningHandle>(std::static_pointer_cast<Loop>(shared_from_this()), id);
}

uint64_t Loop::begin_listening(const std::function<int(Server&, uv_loop_t*)>& prepare,
                               OnAccept on_accept) {
  MutexLock lock(mutex_);
  if (closed_) throw Error(Code::kShutdown, "the loop is closed").operation("listen");
  auto* server = new Server;
  server->loop = this;
  server->id = handles_->next_id++;
  server->on_accept = std::make_shared<const OnAccept>(std::move(on_accept));
  int status = prepare(*server, &loop_);
  server->handle.data = server;
  if (status == 0) status = uv_listen(&server->stream, kBacklog, &Loop::accept_one);
  if (status != 0) {
    uv_close(&server->handle, &Loop::free_server);
    turn_locked();
    throw uv_failure(status, "listen");
  }
  handles_->servers.emplace(server->id, server);
  const uint64_t id = server->id;
  turn_locked();  // libuv registers its descriptors when it turns
  return id;
}

void Loop::accept_one(uv_stream_t* stream, int status) {
  auto* server = static_cast<Server*>(stream->data);
  if (status != 0) return;  // out of descriptors: libuv tries again when one is free
  struct Client {
    union {
      uv_handle_t handle;
      uv_stream_t stream;
      uv_pipe_t pipe;
      uv_tcp_t tcp;
    };
  };
  auto* client = new Client;
  if (server->is_tcp) {
    uv_tcp_init(stream->loop, &client->tcp);
  } else {
    uv_pipe_init(stream->loop, &client->pipe, 0);
  }
  client->handle.data = client;
  int fd = -1;
  if (uv_accept(stream, &client->stream) == 0) {
    if (server->is_tcp) uv_tcp_nodelay(&client->tcp, 1);
    fd = duplicate_of(&client->handle);
  }
  uv_close(&client->handle, [](uv_handle_t* handle) { delete static_cast<Client*>(handle->data); });
  if (fd < 0) return;
  server->loop->outcomes_.push_back([on_accept = server->on_accept, fd] { (*on_accept)(fd); });
}

uint64_t Loop::connect_tcp(const sockaddr* address, OnConnect on_connect) {
  const uint64_t ticket = begin_connect(address, std::move(on_connect));
  run_outcomes();
  return ticket;
}

uint64_t Loop::begin_connect(const sockaddr* address, OnConnect on_connect) {
  MutexLock lock(mutex_);
  if (closed_) throw Error(Code::kShutdown, "the loop is closed").operation("connect");
  auto* attempt = new Attempt{this, handles_->next_id++, {}, {}, std::move(on_connect)};
  uv_tcp_init(&loop_, &attempt->tcp);
  attempt->tcp.data = attempt;
  uv_tcp_nodelay(&attempt->tcp, 1);
  handles_->attempts.emplace(attempt->id, attempt);
  const uint64_t ticket = attempt->id;
  const int status = uv_tcp_connect(
      &attempt->request, &attempt->tcp, address, [](uv_connect_t* request, int error) {
        finish_connect(static_cast<Attempt*>(request->handle->data), error);
      });
  if (status != 0) finish_connect(attempt, status);
  turn_locked();
  return ticket;
}

void Loop::finish_connect(Attempt* attempt, int status) {
  const int fd = status == 0 ? duplicate_of(reinterpret_cast<uv_handle_t*>(&attempt->tcp)) : -1;
  const int error = status == 0 && fd < 0 ? UV_EMFILE : status;
  attempt->loop->handles_->attempts.erase(attempt->id);
  attempt->loop->outcomes_.push_back(
      [on_connect = std::move(attempt->on_connect), fd, error] { on_connect(fd, error); });
  auto* handle = reinterpret_cast<uv_handle_t*>(&attempt->tcp);
  if (!uv_is_closing(handle)) uv_close(handle, &Loop::free_attempt);
}

void Loop::free_attempt(uv_handle_t* handle) { delete static_cast<Attempt*>(handle->data); }
void Loop::free_server(uv_handle_t* handle) { delete static_cast<Server*>(handle->data); }

void Loop::cancel_connect(uint64_t ticket) {
  {
    MutexLock lock(mutex_);
    const auto found = handles_->attempts.find(ticket);
    if (found == handles_->attempts.end()) return;
    auto* handle = reinterpret_cast<uv_handle_t*>(&found->second->tcp);
    if (!uv_is_closing(handle)) uv_close(handle, &Loop::free_attempt);
    turn_locked();
  }
  run_outcomes();
}

}  // namespace farspan::net
