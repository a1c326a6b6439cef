#include <farspan/c10d/transport/unix/unix_transport.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/host.h>
#include <farspan/c10d/net/unix_socket.h>
#include <farspan/c10d/transport/socket_stream.h>

namespace farspan::transport {
namespace {

constexpr std::string_view kPrefix = "unix:@";
constexpr std::string_view kHostField = ";host=";
// While the listener's backlog is full.
constexpr std::chrono::milliseconds kRetryAfter{5};

class UnixListener final : public Listener {
 public:
  UnixListener(std::string endpoint, std::unique_ptr<net::Loop::Listening> listening)
      : endpoint_(std::move(endpoint)), listening_(std::move(listening)) {}
  const std::string& endpoint() const noexcept override { return endpoint_; }

 private:
  const std::string endpoint_;
  const std::unique_ptr<net::Loop::Listening> listening_;
};

class UnixTransport final : public Transport {
 public:
  UnixTransport(std::shared_ptr<net::Loop> loop, net::Reactor& reactor)
      : loop_(std::move(loop)), reactor_(reactor), host_(net::host_id()) {}

  std::string_view name() const noexcept override { return "unix"; }

  std::unique_ptr<Listener> listen(const std::string&, OnAccept on_accept) override {
    net::NamedSocket bound = net::bind_unix_socket();
    const std::string name = bound.name;
    auto accept = [name, on_accept = std::move(on_accept)](int client) {
      if (!net::is_same_user(client)) {
        log(LogLevel::kWarning, "transport", "turned away a peer of another user on unix @" + name);
        close(client);
        return;
      }
      try {
        on_accept(std::make_unique<SocketStream>(client, "unix @" + name));
      } catch (const Error& e) {
        log(LogLevel::kWarning, "transport", e.what());
      }
    };
    auto listening = loop_->listen_unix(bound.socket.release(), std::move(accept));
    return std::make_unique<UnixListener>(
        std::string(kPrefix) + name + std::string(kHostField) + host_, std::move(listening));
  }

  bool reaches(const std::string& endpoint) const override {
    const auto field = endpoint.rfind(kHostField);
    return endpoint.starts_with(kPrefix) && field != std::string::npos &&
           endpoint.substr(field + kHostField.size()) == host_;
  }

  void connect(const std::string& endpoint, Deadline deadline, OnConnect on_connect) override {
    if (!reaches(endpoint)) {
      return on_connect(
          Error(Code::kInvalidArgument, "no unix endpoint of this host: " + endpoint));
    }
    const std::string name =
        endpoint.substr(kPrefix.size(), endpoint.rfind(kHostField) - kPrefix.size());
    try_connect(reactor_, name, Clock::now(), deadline, std::move(on_connect));
  }

 private:
  // A unix socket connects at once, or its listener's backlog is full: then it is tried again.
  static void try_connect(net::Reactor& reactor, const std::string& name, TimePoint begun,
                          Deadline deadline, OnConnect on_connect) {
    const auto failed = [&](Error error) {
      on_connect(error.operation("connect unix @" + name).elapsed(Clock::now() - begun));
    };
    net::OwnedDescriptor socket;
    try {
      socket = net::new_unix_socket();
    } catch (const Error& error) {
      return failed(error);
    }
    if (const int error = net::connect_unix(socket.get(), name)) {
      if (error == ENAMETOOLONG) {
        return failed(Error(Code::kInvalidArgument, "the name is too long"));
      }
      if (error != EAGAIN && error != EINTR) {
        return failed(Error(Code::kUnavailable, std::string("connect: ") + std::strerror(error)));
      }
      if (deadline.expired()) {
        return failed(Error(Code::kTimeout, "too many others connect to it, or it has stopped"));
      }
      reactor.timers().add(earlier(deadline, Deadline::after(kRetryAfter)).at(),
                           [&reactor, name, begun, deadline, on_connect = std::move(on_connect)] {
                             try_connect(reactor, name, begun, deadline, on_connect);
                           });
      return;
    }
    std::unique_ptr<Stream> stream;
    try {
      stream = std::make_unique<SocketStream>(socket.release(), "unix @" + name);
    } catch (const Error& e) {
      return failed(e);
    }
    on_connect(std::move(stream));
  }

  const std::shared_ptr<net::Loop> loop_;
  net::Reactor& reactor_;
  const std::string host_;
};

}  // namespace

std::unique_ptr<Transport> make_unix_transport(std::shared_ptr<net::Loop> loop,
                                               net::Reactor& reactor) {
  return std::make_unique<UnixTransport>(std::move(loop), reactor);
}

}  // namespace farspan::transport
