#include <farspan/c10d/transport/tcp/tcp_transport.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/transport/socket_stream.h>

namespace farspan::transport {
namespace {

constexpr std::string_view kPrefix = "tcp:";

bool parse_ip(const std::string& host, uint16_t port, sockaddr_storage& out) {
  out = {};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    return true;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out);
  if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return true;
  }
  return false;
}

bool parse_endpoint(const std::string& endpoint, sockaddr_storage& out) {
  if (!endpoint.starts_with(kPrefix)) return false;
  std::string host = endpoint.substr(kPrefix.size());
  const auto colon = host.rfind(':');
  if (colon == std::string::npos) return false;
  unsigned port = 0;
  const char* last = host.data() + host.size();
  const auto parsed = std::from_chars(host.data() + colon + 1, last, port);
  if (parsed.ec != std::errc() || parsed.ptr != last || port > 65535) return false;
  host.resize(colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return parse_ip(host, static_cast<uint16_t>(port), out);
}

std::string endpoint_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return std::string(kPrefix) + text + ":" + std::to_string(ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  return std::string(kPrefix) + "[" + text + "]:" + std::to_string(ntohs(v6.sin6_port));
}

std::unique_ptr<Stream> stream_over(int fd, const std::string& description) {
  net::tune_connection(fd);  // also so that a host that is gone is noticed though nothing is sent
  return std::make_unique<SocketStream>(fd, description);
}

class TcpListener final : public Listener {
 public:
  TcpListener(std::string endpoint, std::unique_ptr<net::Loop::Listening> listening)
      : endpoint_(std::move(endpoint)), listening_(std::move(listening)) {}
  const std::string& endpoint() const noexcept override { return endpoint_; }

 private:
  const std::string endpoint_;
  const std::unique_ptr<net::Loop::Listening> listening_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<net::Loop> loop, net::Reactor& reactor)
      : loop_(std::move(loop)), reactor_(reactor) {}

  std::string_view name() const noexcept override { return "tcp"; }

  std::unique_ptr<Listener> listen(const std::string& host, OnAccept on_accept) override {
    sockaddr_storage address, bound{};
    if (!parse_ip(host, 0, address)) {
      throw Error(Code::kInvalidArgument, "'" + host + "' is no numeric address")
          .operation("listen on TCP")
          .advice("give WorkerOptions::bind_host an address of this host, as 10.0.0.3");
    }
    auto accept = [host, on_accept = std::move(on_accept)](int client) {
      try {
        on_accept(stream_over(client, "tcp to " + host));
      } catch (const Error& e) {
        log(LogLevel::kWarning, "transport", e.what());
      }
    };
    auto listening =
        loop_->listen_tcp(reinterpret_cast<const sockaddr*>(&address), std::move(accept), &bound);
    return std::make_unique<TcpListener>(endpoint_of(bound), std::move(listening));
  }

  bool reaches(const std::string& endpoint) const override {
    sockaddr_storage address;
    return parse_endpoint(endpoint, address);
  }

  void connect(const std::string& endpoint, Deadline deadline, OnConnect on_connect) override {
    sockaddr_storage address;
    if (!parse_endpoint(endpoint, address)) {
      return on_connect(Error(Code::kInvalidArgument, "no TCP endpoint: " + endpoint));
    }
    struct Attempt {
      OnConnect on_connect;
      std::atomic<net::TimerId> timer{0};
      std::atomic<bool> done{false};
    };
    auto attempt = std::make_shared<Attempt>();
    attempt->on_connect = std::move(on_connect);
    const TimePoint begun = Clock::now();
    auto finish = [this, attempt, endpoint, begun](int fd, int uv_error) {
      const OnConnect done = std::move(attempt->on_connect);
      attempt->done = true;
      if (const net::TimerId timer = attempt->timer.exchange(0)) reactor_.timers().cancel(timer);
      if (uv_error != 0) {
        return done(
            Error(uv_error == UV_ECANCELED ? Code::kTimeout : Code::kUnavailable,
                  uv_error == UV_ECANCELED ? "no answer" : uv_strerror(uv_error))
                .operation("connect " + endpoint)
                .elapsed(Clock::now() - begun)
                .advice(
                    "has it ended, perhaps without shutdown(), or does a firewall stand between?"));
      }
      std::unique_ptr<Stream> stream;
      try {
        stream = stream_over(fd, endpoint);
      } catch (const Error& e) {
        return done(e);
      }
      done(std::move(stream));
    };
    uint64_t ticket = 0;
    try {
      ticket = loop_->connect_tcp(reinterpret_cast<const sockaddr*>(&address), std::move(finish));
    } catch (const Error& e) {  // the loop is closed
      return attempt->on_connect(e);
    }
    if (deadline.is_never() || attempt->done) return;
    attempt->timer = reactor_.timers().add(
        deadline.at(), [loop = loop_, ticket] { loop->cancel_connect(ticket); });
  }

 private:
  const std::shared_ptr<net::Loop> loop_;
  net::Reactor& reactor_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<net::Loop> loop,
                                              net::Reactor& reactor) {
  return std::make_unique<TcpTransport>(std::move(loop), reactor);
}

}  // namespace farspan::transport
