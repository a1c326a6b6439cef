// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RedisConnection: one conversation with a Redis server, over a socket that blocks with a deadline.
// hiredis writes the commands and reads the answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/store/store.h>

struct redisReader;

namespace farspan::dist {

// What a connection begins with.
struct RedisLogin {
  std::string user;      // empty: the server's default user
  std::string password;  // empty: none
  int db = 0;
};

struct RedisReply {
  enum class Kind { kNil, kInteger, kText, kArray };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;
  std::vector<RedisReply> elements;

  bool is_nil() const noexcept { return kind == Kind::kNil; }
};

using RedisCommand = std::vector<std::string_view>;

// Threading: one thread at a time.
class RedisConnection {
 public:
  // Connects and logs in, once.
  //   max_answer_bytes  longer ones are refused
  //   throws  Error kUnavailable (also while the server loads its data), kTimeout, kDisconnected,
  //           kInvalidArgument (password, database), kCorrupt (there is something else)
  RedisConnection(const net::HostPort& where, const RedisLogin& login, Deadline deadline,
                  size_t max_answer_bytes = kMaxAnswerBytes);
  ~RedisConnection();

  // False when the server has gone, or has said something that nobody asked for.
  bool is_idle() const noexcept;

  // Sends a command and returns its answer.
  //   throws  Error kDisconnected, kTimeout, kCorrupt, and what the server refuses with:
  //           kInvalidArgument, kOverloaded, kUnavailable; the connection is of no use then
  RedisReply ask(const RedisCommand& command, Deadline deadline);
  // The same in two parts. The server has not been asked when send() throws.
  void send(const RedisCommand& command, Deadline deadline);
  RedisReply read(Deadline deadline) { return read(deadline, {}); }

  // From here on it only listens: to `channel`, and to those that it subscribed to before.
  void subscribe(const std::string& channel, Deadline deadline);
  // Returns at a message to any of them; false at the deadline.
  bool listen(Deadline deadline);

 private:
  // What one answer of a store may carry, and lengths of keys and values.
  static constexpr size_t kMaxAnswerBytes = kMaxStoreReplyBytes + (size_t{16} << 20);

  struct FreeReader {
    void operator()(redisReader* reader) const noexcept;
  };

  // What the server must not be quoted with: `secret`.
  RedisReply read(Deadline deadline, std::string_view secret);
  void log_in(const RedisLogin& login, Deadline deadline);

  net::OwnedDescriptor fd_;
  std::unique_ptr<redisReader, FreeReader> reader_;  // never null
  const size_t max_answer_bytes_;
  size_t received_ = 0;  // of the answer that is not there as a whole yet
};

}  // namespace farspan::dist
