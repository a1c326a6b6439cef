#include "c10d/store/store_server.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/rendezvous.h>

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kCommand = "FARSPAN_TEST_COMMAND";  // program, name, arguments; a line each
constexpr const char* kFolder = "FARSPAN_TEST_FOLDER";

// Found when CMake ran; empty where there was none, or farspan was built without its store.
std::string program_of(StoreServer::Kind kind) {
  return kind == StoreServer::Kind::kRedis ? FARSPAN_REDIS_SERVER : FARSPAN_ETCD_SERVER;
}

int become_server() {
  std::istringstream command(std::getenv(kCommand));
  std::string program, word;
  std::getline(command, program);
  std::vector<std::string> words;
  while (std::getline(command, word)) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& each : words) argv.push_back(each.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());  // still to be killed with the test
  return 126;
}

// Waits for the end of the test. Servers that it has left may write for a moment yet.
int guard_folder() {
  const std::string folder = std::getenv(kFolder);
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  int number = 0;
  sigwait(&end, &number);
  for (int i = 0; i < 100 && std::filesystem::exists(folder); ++i) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    std::this_thread::sleep_for(10ms);
  }
  return 0;
}

}  // namespace

std::string StoreServer::missing(Kind kind) {
  if (access(program_of(kind).c_str(), X_OK) == 0) return {};
  const std::string why =
      std::string(kind == Kind::kRedis ? "no redis-server here" : "no etcd here") +
      ", or farspan was built without its store";
  if (std::getenv("FARSPAN_NEED_ALL")) {
    throw std::runtime_error(why + ", but FARSPAN_NEED_ALL is set");
  }
  return why;
}

std::map<std::string, Role> StoreServer::roles() {
  return {{"server", become_server}, {"guard", guard_folder}};
}

StoreServer::StoreServer(Kind kind, std::vector<std::string> more)
    : kind_(kind), more_(std::move(more)), guard_("guard", {{kFolder, folder_.path()}}) {
  start();
}

void StoreServer::kill() { process_.reset(); }

void StoreServer::start() {
  std::string command = program_of(kind_);
  for (const std::string& argument : arguments()) command += "\n" + argument;
  process_ = std::make_unique<Process>("server", Process::Environment{{kCommand, command}});
}

std::vector<std::string> StoreServer::arguments() const {
  std::vector<std::string> all;
  if (kind_ == Kind::kRedis) {
    // The name says that the program, which may be another one's, is to be the server.
    all = {"redis-server",
           "--port",
           std::to_string(port()),
           "--bind",
           "127.0.0.1",
           "--dir",
           folder_.path(),
           "--save",
           "",
           "--appendonly",
           "yes",
           "--appendfsync",
           "no"};
  } else {
    const std::string peers = "http://127.0.0.1:" + std::to_string(peer_port_.number());
    const std::string clients = "http://" + place();
    all = {"etcd",
           "--data-dir=" + folder_.file("data"),
           "--listen-client-urls=" + clients,
           "--advertise-client-urls=" + clients,
           "--listen-peer-urls=" + peers,
           "--initial-advertise-peer-urls=" + peers,
           "--initial-cluster=default=" + peers,
           "--max-request-bytes=16777216",  // so that it takes the largest value
           "--unsafe-no-fsync",
           "--bcrypt-cost=4",
           "--heartbeat-interval=20",
           "--election-timeout=200",
           "--logger=zap"};
  }
  all.insert(all.end(), more_.begin(), more_.end());
  return all;
}

PasswordServer::PasswordServer(StoreServer::Kind kind)
    : server(kind, kind == StoreServer::Kind::kRedis
                       ? std::vector<std::string>{"--requirepass", "other", "--user", "alice", "on",
                                                  std::string(">") + kPassword, "~farspan:*",
                                                  "&farspan:*", "+@all"}
                       : std::vector<std::string>{}) {
  if (kind == StoreServer::Kind::kRedis) return;
  dist::RendezvousOptions options;
  options.timeout = 60s;
  dist::rendezvous("etcd://" + server.place() + "?rank=0&world_size=1&prefix=x",
                   options);  // it is there
  const std::string quoted = std::string("\"") + kPassword + "\"";
  const std::pair<std::string, std::string> requests[] = {
      {"user/add", R"({"name":"root","password":"root"})"},
      {"role/add", R"({"name":"root"})"},
      {"user/grant", R"({"user":"root","role":"root"})"},
      {"user/add", R"({"name":"alice","password":)" + quoted + "}"},
      {"role/add", R"({"name":"jobs"})"},
      // From "farspan:" to before "farspan;".
      {"role/grant", R"({"name":"jobs","perm":{"permType":"READWRITE","key":"ZmFyc3Bhbjo=",)"
                     R"("range_end":"ZmFyc3Bhbjs="}})"},
      {"user/grant", R"({"user":"alice","role":"jobs"})"},
      {"enable", "{}"}};
  for (const auto& [what, body] : requests) {
    const std::string answer = http_post(server.port(), "/v3/auth/" + what, body);
    if (answer.find("200 OK") == std::string::npos) throw std::runtime_error(what + ": " + answer);
  }
}

std::string http_post(uint16_t port, const std::string& path, const std::string& body,
                      const std::string& token) {
  const Deadline deadline = Deadline::after(20s);
  const auto fd = net::dial({"127.0.0.1", port}, deadline);
  std::string request = "POST " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";
  if (!token.empty()) request += "Authorization: " + token + "\r\n";
  request += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  net::send_all(fd.get(), request.data(), request.size(), deadline);
  std::string answer;
  try {
    char part[4096];
    while (true) answer.append(part, net::receive_some(fd.get(), part, sizeof part, deadline));
  } catch (const Error& error) {
    if (error.code() != Code::kDisconnected) throw;
  }
  return answer;
}

}  // namespace farspan::testing
