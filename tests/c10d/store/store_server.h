// StoreServer: a Redis or etcd server of a test's own: on free ports of loopback, with its data in
// a temporary folder. It ends with the test, and leaves nothing behind when that is killed.
//
//   int main(int argc, char** argv) {
//     return farspan::testing::run_tests(argc, argv, farspan::testing::StoreServer::roles());
//   }
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "c10d/store/reserved_port.h"
#include "c10d/store/temporary_folder.h"
#include "support/processes.h"

namespace farspan::testing {

// Threading: the test's main thread.
class StoreServer {
 public:
  enum class Kind { kRedis, kEtcd };

  // Why no server can be started; empty when one can. With FARSPAN_NEED_ALL set it throws instead,
  // which fails the test: so CI does not skip it for ever.
  static std::string missing(Kind kind);
  // What the test's program can be besides: the servers, and who removes the folders.
  static std::map<std::string, Role> roles();

  // Starts one. It may take a moment until it answers. `more`: further arguments for it.
  explicit StoreServer(Kind kind, std::vector<std::string> more = {});

  uint16_t port() const { return port_.number(); }
  std::string place() const { return "127.0.0.1:" + std::to_string(port()); }

  void kill();   // with SIGKILL
  void start();  // again, on the same port, with the data that it had written
  void signal(int number) { process_->signal(number); }
  std::string output() const { return process_ ? process_->output() : ""; }

 private:
  std::vector<std::string> arguments() const;

  const Kind kind_;
  const std::vector<std::string> more_;
  const ReservedPort port_, peer_port_;
  const TemporaryFolder folder_;
  Process guard_;
  std::unique_ptr<Process> process_;
};

// One that lets in nobody but its users, of whom "alice" may do what farspan needs.
struct PasswordServer {
  static constexpr const char* kPassword = "s3cret/?@";

  explicit PasswordServer(StoreServer::Kind kind);
  StoreServer server;
};

// Sends one request of HTTP, with a token of a login, and returns the whole answer.
std::string http_post(uint16_t port, const std::string& path, const std::string& body,
                      const std::string& token = "");

}  // namespace farspan::testing
