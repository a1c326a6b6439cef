// FakeServer: a server that says what a test makes it say, on a free port of loopback.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>

namespace farspan::testing {

// Threading: the test's main thread; each connection has a thread, on which `talk` runs.
class FakeServer {
 public:
  // Talks to one client over its socket; the connection is closed when it returns or throws Error.
  using Talk = std::function<void(int fd)>;

  explicit FakeServer(Talk talk)
      : talk_(std::move(talk)),
        listening_(net::listen_on({"127.0.0.1", 0}, deadline())),
        accepting_([this] { accept(); }) {}
  ~FakeServer() {
    shutdown(listening_[0].get(), SHUT_RDWR);
    accepting_.join();
    for (auto& client : clients_) {
      shutdown(client.fd.get(), SHUT_RDWR);
      client.thread.join();
    }
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  uint16_t port() const { return net::SocketAddress::local_of(listening_[0].get()).port(); }

  static Deadline deadline() { return Deadline::after(std::chrono::seconds(20)); }
  static void send(int fd, const std::string& bytes) {
    net::send_all(fd, bytes.data(), bytes.size(), deadline());
  }
  static std::string receive(int fd) {
    char part[65536];
    return {part, net::receive_some(fd, part, sizeof part, deadline())};
  }

 private:
  struct Client {
    net::OwnedDescriptor fd;
    std::thread thread;
  };

  void accept() {
    while (true) {
      pollfd poller{listening_[0].get(), POLLIN, 0};
      poll(&poller, 1, -1);
      net::OwnedDescriptor fd(accept4(listening_[0].get(), nullptr, nullptr, SOCK_NONBLOCK));
      if (!fd) return;
      Client& client = clients_.emplace_back(Client{std::move(fd), {}});
      client.thread = std::thread([this, fd = client.fd.get()] {
        try {
          talk_(fd);
        } catch (const Error&) {  // the client has gone
        }
        shutdown(fd, SHUT_RDWR);
      });
    }
  }

  const Talk talk_;
  const std::vector<net::OwnedDescriptor> listening_;
  std::list<Client> clients_;  // of the accepting thread, until that has ended
  std::thread accepting_;
};

// Answers each piece that comes with what `answer` makes of it.
inline FakeServer::Talk answering(std::function<std::string(const std::string&)> answer) {
  return [answer = std::move(answer)](int fd) {
    while (true) FakeServer::send(fd, answer(FakeServer::receive(fd)));
  };
}

struct HttpAnswer {
  int status = 200;
  std::string body;
};
// Answers requests of HTTP, by their path and body.
inline FakeServer::Talk answering_http(
    std::function<HttpAnswer(const std::string& path, const std::string& body)> answer) {
  return [answer = std::move(answer)](int fd) {
    std::string received;
    while (true) {
      size_t end = 0;
      while ((end = received.find("\r\n\r\n")) == std::string::npos) {
        received += FakeServer::receive(fd);
      }
      const std::string length = "Content-Length: ";
      const size_t size =
          std::strtoul(&received[received.find(length) + length.size()], nullptr, 10);
      end += 4;
      while (received.size() < end + size) received += FakeServer::receive(fd);
      const size_t path = received.find(' ') + 1;
      const HttpAnswer said = answer(received.substr(path, received.find(' ', path) - path),
                                     received.substr(end, size));
      received.erase(0, end + size);
      FakeServer::send(fd, "HTTP/1.1 " + std::to_string(said.status) + " Said\r\nContent-Length: " +
                               std::to_string(said.body.size()) + "\r\n\r\n" + said.body);
    }
  };
}

}  // namespace farspan::testing
