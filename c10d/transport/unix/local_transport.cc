#include <farspan/c10d/transport/unix/local_transport.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/host.h>
#include <farspan/c10d/net/unix_socket.h>

namespace farspan::transport {
namespace {

constexpr std::string_view kHostField = ";host=";
// While the listener's backlog is full.
constexpr std::chrono::milliseconds kRetryAfter{5};

class LocalListener final : public Listener {
 public:
  LocalListener(std::string endpoint, std::unique_ptr<net::Loop::Listening> listening)
      : endpoint_(std::move(endpoint)), listening_(std::move(listening)) {}
  const std::string& endpoint() const noexcept override { return endpoint_; }

 private:
  const std::string endpoint_;
  const std::unique_ptr<net::Loop::Listening> listening_;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(LocalKind kind, std::shared_ptr<net::Loop> loop, net::Reactor& reactor)
      : kind_(std::make_shared<const LocalKind>(std::move(kind))),
        prefix_(kind_->name + ":@"),
        loop_(std::move(loop)),
        reactor_(reactor),
        host_(net::host_id()) {}

  std::string_view name() const noexcept override { return kind_->name; }

  std::unique_ptr<Listener> listen(const std::string&, OnAccept on_accept) override {
    net::NamedSocket bound = net::bind_unix_socket();
    const std::string description = describe(*kind_, bound.name);
    auto accept = [kind = kind_, description, on_accept = std::move(on_accept)](int client) {
      net::OwnedDescriptor socket(client);
      if (!net::is_same_user(client)) {
        log(LogLevel::kWarning, "transport",
            "turned away a peer of another user on " + description);
        return;
      }
      try {
        kind->accepted(std::move(socket), description, on_accept);
      } catch (const Error& e) {
        log(LogLevel::kWarning, "transport", e.what());
      }
    };
    auto listening = loop_->listen_unix(bound.socket.release(), std::move(accept));
    return std::make_unique<LocalListener>(prefix_ + bound.name + std::string(kHostField) + host_,
                                           std::move(listening));
  }

  bool reaches(const std::string& endpoint) const override {
    const auto field = endpoint.rfind(kHostField);
    return endpoint.starts_with(prefix_) && field != std::string::npos &&
           endpoint.substr(field + kHostField.size()) == host_;
  }

  void connect(const std::string& endpoint, Deadline deadline, OnConnect on_connect) override {
    if (!reaches(endpoint)) {
      return on_connect(Error(Code::kInvalidArgument,
                              "no " + kind_->name + " endpoint of this host: " + endpoint));
    }
    const std::string name =
        endpoint.substr(prefix_.size(), endpoint.rfind(kHostField) - prefix_.size());
    try_connect({kind_, reactor_, name, Clock::now(), deadline}, std::move(on_connect));
  }

 private:
  struct Attempt {
    std::shared_ptr<const LocalKind> kind;
    net::Reactor& reactor;
    std::string name;
    TimePoint begun;
    Deadline deadline;
  };
  static std::string describe(const LocalKind& kind, const std::string& name) {
    return kind.name + " @" + name;
  }

  // A unix socket connects at once, or its listener's backlog is full: then it is tried again.
  static void try_connect(const Attempt& attempt, OnConnect on_connect) {
    const std::string description = describe(*attempt.kind, attempt.name);
    const auto failed = [&](Error error) {
      on_connect(error.operation("connect " + description).elapsed(Clock::now() - attempt.begun));
    };
    net::OwnedDescriptor socket;
    try {
      socket = net::new_unix_socket();
    } catch (const Error& error) {
      return failed(error);
    }
    if (const int error = net::connect_unix(socket.get(), attempt.name)) {
      if (error == ENAMETOOLONG) {
        return failed(Error(Code::kInvalidArgument, "the name is too long"));
      }
      if (error != EAGAIN && error != EINTR) {
        return failed(Error(Code::kUnavailable, std::string("connect: ") + std::strerror(error)));
      }
      if (attempt.deadline.expired()) {
        return failed(Error(Code::kTimeout, "too many others connect to it, or it has stopped"));
      }
      const TimePoint again = earlier(attempt.deadline, Deadline::after(kRetryAfter)).at();
      attempt.reactor.timers().add(again, [attempt, on_connect = std::move(on_connect)] {
        try_connect(attempt, on_connect);
      });
      return;
    }
    std::unique_ptr<Stream> stream;
    try {
      stream = attempt.kind->dialled(std::move(socket), description);
    } catch (const Error& e) {
      return failed(e);
    }
    on_connect(std::move(stream));
  }

  const std::shared_ptr<const LocalKind> kind_;
  const std::string prefix_;
  const std::shared_ptr<net::Loop> loop_;
  net::Reactor& reactor_;
  const std::string host_;
};

}  // namespace

std::unique_ptr<Transport> make_local_transport(LocalKind kind, std::shared_ptr<net::Loop> loop,
                                                net::Reactor& reactor) {
  return std::make_unique<LocalTransport>(std::move(kind), std::move(loop), reactor);
}

}  // namespace farspan::transport
