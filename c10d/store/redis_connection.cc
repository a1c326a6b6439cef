#include <farspan/c10d/store/redis_connection.h>

#include <hiredis/hiredis.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <new>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/dial.h>
#include <farspan/c10d/store/server_connections.h>

namespace farspan::dist {
namespace {

constexpr size_t kChunk = 65536;

struct FreeReply {
  void operator()(redisReply* reply) const noexcept { freeReplyObject(reply); }
};

// What the server refuses. It is quoted where its words are known and without `secret`: others may
// repeat what was asked, and that may be a password.
Error refused(std::string text, std::string_view secret) {
  // Redis 6 wraps what was said to a script.
  if (const size_t at = text.rfind(": -");
      text.starts_with("ERR Error running script") && at != std::string::npos) {
    text.erase(0, at + 3);
  }
  const auto error = [&](Code code, const char* advice) {
    const bool quoted = secret.empty() || text.find(secret) == std::string::npos;
    return Error(code, quoted ? "the server says: " + text.substr(0, 300) : "the login is refused")
        .advice(advice);
  };
  const auto is = [&](const char* prefix) { return text.starts_with(prefix); };
  if (is("NOAUTH")) {
    return error(Code::kInvalidArgument,
                 "give the password: FARSPAN_STORE_PASSWORD_FILE, or redis://user:password@host");
  }
  if (is("WRONGPASS") || is("ERR invalid password")) {
    return error(Code::kInvalidArgument,
                 "correct the password, or the user; without a user it is that of 'default'");
  }
  if (text.find("without any password configured") != std::string::npos) {
    return error(Code::kInvalidArgument, "this server wants no password: give none");
  }
  if (is("NOPERM")) {
    return error(Code::kInvalidArgument,
                 "allow the user ~farspan:* &farspan:* and the commands (ACL SETUSER)");
  }
  if (is("WRONGTYPE")) {
    return error(Code::kInvalidArgument,
                 "something else has keys under this prefix: use another one");
  }
  if (is("DENIED")) {
    return error(Code::kInvalidArgument, "the server takes no clients from here: see its settings");
  }
  if (is("OOM") || is("MISCONF") || is("ERR max number of clients")) {
    return error(Code::kOverloaded, "give the server more memory, disk or clients");
  }
  if (is("LOADING") || is("BUSY") || is("MASTERDOWN") || is("TRYAGAIN") || is("CLUSTERDOWN")) {
    return error(Code::kUnavailable, "try again soon");
  }
  if (text.find("DB index") != std::string::npos) {
    return error(Code::kInvalidArgument, "name a database that the server has, 0 for instance");
  }
  if (is("READONLY")) return error(Code::kInvalidArgument, "connect to the master, not a replica");
  if (is("MOVED") || is("CROSSSLOT")) {
    return error(Code::kInvalidArgument,
                 "farspan does not work with a Redis cluster: use one server");
  }
  const char* unknown = "ERR unknown command";
  text = is(unknown) ? unknown : "an error that farspan does not know";
  return error(Code::kInvalidArgument,
               "farspan needs a Redis server of version 6 or newer, with its commands as they are "
               "named by themselves; the server's log may say more");
}

// Of an error reply inside an array, too.
RedisReply convert(const redisReply& reply, std::string_view secret) {
  RedisReply result;
  switch (reply.type) {
    case REDIS_REPLY_ERROR:
      throw refused(std::string(reply.str, reply.len), secret);
    case REDIS_REPLY_NIL:
      break;
    case REDIS_REPLY_INTEGER:
      result.kind = RedisReply::Kind::kInteger;
      result.integer = reply.integer;
      break;
    case REDIS_REPLY_ARRAY:
      result.kind = RedisReply::Kind::kArray;
      result.elements.reserve(reply.elements);
      for (size_t i = 0; i < reply.elements; ++i) {
        result.elements.push_back(convert(*reply.element[i], secret));
      }
      break;
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_STRING:
      result.kind = RedisReply::Kind::kText;
      result.text.assign(reply.str, reply.len);
      break;
    default:
      throw not_the_server("the answer is of a kind that was not asked for");
  }
  return result;
}

}  // namespace

void RedisConnection::FreeReader::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

RedisConnection::RedisConnection(const net::HostPort& where, const RedisLogin& login,
                                 Deadline deadline, size_t max_answer_bytes)
    : fd_(net::dial(where, deadline)),
      reader_(redisReaderCreate()),
      max_answer_bytes_(max_answer_bytes) {
  if (!reader_) throw std::bad_alloc();
  if (!login.password.empty() || !login.user.empty()) log_in(login, deadline);
  if (login.db != 0) ask({"SELECT", std::to_string(login.db)}, deadline);
}

void RedisConnection::log_in(const RedisLogin& login, Deadline deadline) {
  RedisCommand command = {"AUTH"};
  if (!login.user.empty()) command.push_back(login.user);
  command.push_back(login.password);
  send(command, deadline);
  read(deadline, login.password);
}

RedisConnection::~RedisConnection() = default;

bool RedisConnection::is_idle() const noexcept {
  pollfd poller{fd_.get(), POLLIN, 0};
  return reader_->pos == reader_->len && poll(&poller, 1, 0) == 0;
}

RedisReply RedisConnection::ask(const RedisCommand& command, Deadline deadline) {
  send(command, deadline);
  return read(deadline);
}

void RedisConnection::subscribe(const std::string& channel, Deadline deadline) {
  send({"SUBSCRIBE", channel}, deadline);
  // Messages to the channels before may come first; who subscribes looks for what they tell.
  while (true) {
    const RedisReply reply = read(deadline);
    if (!reply.elements.empty() && reply.elements[0].text == "subscribe") return;
  }
}

bool RedisConnection::listen(Deadline deadline) {
  try {
    read(deadline);
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return false;  // a part of a message may be there; the rest is added to it
  }
}

void RedisConnection::send(const RedisCommand& command, Deadline deadline) {
  if (deadline.expired()) throw out_of_time();
  std::vector<const char*> words;
  std::vector<size_t> sizes;
  for (const std::string_view word : command) {
    words.push_back(word.data() ? word.data() : "");
    sizes.push_back(word.size());
  }
  sds line = nullptr;
  const int size = redisFormatSdsCommandArgv(&line, static_cast<int>(command.size()), words.data(),
                                             sizes.data());
  if (size < 0) throw std::bad_alloc();
  const std::unique_ptr<char, void (*)(sds)> owner(line, redisFreeSdsCommand);
  net::send_all(fd_.get(), line, static_cast<size_t>(size), deadline);
}

RedisReply RedisConnection::read(Deadline deadline, std::string_view secret) {
  std::array<char, kChunk> bytes;
  for (bool first = true;; first = false) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
      throw not_the_server(std::string("the answer is not of Redis: ") + reader_->errstr);
    }
    if (reply) {
      received_ = 0;
      const std::unique_ptr<redisReply, FreeReply> owner(static_cast<redisReply*>(reply));
      return convert(*owner, secret);
    }
    // One who sends without an end is never waited for.
    if (!first && deadline.expired()) throw Error(Code::kTimeout, "no whole answer");
    const size_t got = net::receive_some(fd_.get(), bytes.data(), bytes.size(), deadline);
    received_ += got;
    if (received_ > max_answer_bytes_) {
      throw Error(Code::kInvalidArgument,
                  "the answer is longer than " + std::to_string(max_answer_bytes_) + " bytes")
          .advice("ask for fewer keys at once");
    }
    if (redisReaderFeed(reader_.get(), bytes.data(), got) != REDIS_OK) throw std::bad_alloc();
  }
}

}  // namespace farspan::dist
