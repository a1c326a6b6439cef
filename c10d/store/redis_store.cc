#include <farspan/c10d/store/redis_store.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/redis_connection.h>
#include <farspan/c10d/store/refusal.h>
#include <farspan/c10d/store/server_connections.h>
#include <farspan/c10d/store/server_url.h>
#include <farspan/c10d/store/table.h>

namespace farspan::dist {
namespace {

constexpr const char* kServer = "the Redis server";
constexpr size_t kFewKeys = 16;  // of a wait are looked at, where one was missing

// Scripts run alone in the server. KEYS: the hash of keys, the channel (without the key).
// ARGV: key, value, key, value, ...
constexpr std::string_view kSet = R"(
for i = 1, #ARGV, 2 do
  if redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('PUBLISH', KEYS[2] .. ARGV[i], '')
  end
end
return 1)";

// ARGV: key, delta. The sum as text, since a number of a script has 53 bits; nothing when Redis
// cannot add to what is there.
constexpr std::string_view kAdd = R"(
local known = redis.call('HEXISTS', KEYS[1], ARGV[1])
local sum = redis.pcall('HINCRBY', KEYS[1], ARGV[1], ARGV[2])
if type(sum) == 'table' then return known == 0 and sum end
if known == 0 then redis.call('PUBLISH', KEYS[2] .. ARGV[1], '') end
return redis.call('HGET', KEYS[1], ARGV[1]))";

// ARGV: key, expected, desired. Whether it was replaced.
constexpr std::string_view kReplace = R"(
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1)";

// ARGV: key, expected, desired. The value then, or nothing.
constexpr std::string_view kCompareSet = R"(
local value = redis.call('HGET', KEYS[1], ARGV[1])
if value ~= ARGV[2] and (value or ARGV[2] ~= '') then return value end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if not value then redis.call('PUBLISH', KEYS[2] .. ARGV[1], '') end
return ARGV[3])";

// ARGV: key, value, limit. Whether it fits.
constexpr std::string_view kAppend = R"(
local value = redis.call('HGET', KEYS[1], ARGV[1])
if #(value or '') + #ARGV[2] > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], (value or '') .. ARGV[2])
if not value then redis.call('PUBLISH', KEYS[2] .. ARGV[1], '') end
return 1)";

// KEYS: the hash, the lists (without the queue). ARGV: keys. The number of the first that is
// neither a key nor a queue; 0: all are there.
constexpr std::string_view kFirstMissing = R"(
for i, key in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[1], key) == 0 and redis.call('EXISTS', KEYS[2] .. key) == 0 then
    return i
  end
end
return 0)";

// KEYS: the list, the set of all queues' names, the channel. ARGV: queue, value.
constexpr std::string_view kPush = R"(
if redis.call('RPUSH', KEYS[1], ARGV[2]) == 1 then
  redis.call('SADD', KEYS[2], ARGV[1])
  redis.call('PUBLISH', KEYS[3], '')
end
return 1)";

// KEYS: the hash, the lists (without the queue), the set of all queues' names.
constexpr std::string_view kClear = R"(
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  redis.call('UNLINK', KEYS[2] .. queue)
end
return redis.call('UNLINK', KEYS[1], KEYS[3]))";

Error another_answer() { return not_the_server("the answer is to another question"); }

std::string text_of(RedisReply reply) {
  if (reply.kind != RedisReply::Kind::kText) throw another_answer();
  return std::move(reply.text);
}

std::optional<std::string> text_or_nothing(RedisReply reply) {
  if (reply.is_nil()) return std::nullopt;
  return text_of(std::move(reply));
}

std::vector<RedisReply> elements_of(RedisReply reply) {
  if (reply.kind != RedisReply::Kind::kArray) throw another_answer();
  return std::move(reply.elements);
}

// Of 0 to `most`.
int64_t count_of(const RedisReply& reply, int64_t most = INT64_MAX) {
  if (reply.kind != RedisReply::Kind::kInteger || reply.integer < 0 || reply.integer > most) {
    throw another_answer();
  }
  return reply.integer;
}
bool flag_of(const RedisReply& reply) { return count_of(reply, 1) == 1; }

// "1.500"; a decimal point wherever this process is.
std::string seconds_of(Millis time) {
  return std::to_string(time.count() / 1000) + "." +
         std::to_string(1000 + time.count() % 1000).substr(1);
}

// A pop's answer.
RedisReply read_popped(RedisConnection& connection, Deadline deadline) {
  try {
    return connection.read(deadline);
  } catch (const Error& error) {
    throw may_have_taken(error);
  }
}

}  // namespace

RedisStore::RedisStore(RedisStoreOptions options) : RedisStore(std::move(options), ServerTimes()) {}

RedisStore::RedisStore(RedisStoreOptions options, const ServerTimes& times)
    : Store(options.timeout),
      options_(std::move(options)),
      times_(std::make_unique<ServerTimes>(times)),
      where_{options_.host, options_.port},
      keys_(names_of_job(options_.prefix) + "keys"),
      queue_(names_of_job(options_.prefix) + "queue:"),
      queues_(names_of_job(options_.prefix) + "queues"),
      channel_(names_of_job(options_.prefix) + "new:"),
      idle_(std::make_unique<IdleConnections<RedisConnection>>()) {
  const TimePoint start = Clock::now();
  try {
    keep_trying(Deadline::in(options_.timeout),
                {address(),
                 "start the Redis server, and check host and port; a firewall may be in between"},
                [&](Deadline deadline) { first_missing({""}, 0, 1, deadline); });
  } catch (Error& error) {
    error.operation("join the store at " + address()).elapsed(Clock::now() - start);
    throw;
  }
}

RedisStore::~RedisStore() = default;

std::string RedisStore::address() const {
  return "redis://" + where_.to_string() + "/" + std::to_string(options_.db) +
         "?prefix=" + options_.prefix;
}

std::unique_ptr<RedisConnection> RedisStore::connect(Deadline deadline) {
  return std::make_unique<RedisConnection>(
      where_, RedisLogin{options_.user, options_.password, options_.db}, deadline);
}

template <class Talk>
auto RedisStore::with_connection(Deadline deadline, Talk talk) {
  try {
    auto connection = idle_->take();
    if (!connection) connection = connect(deadline);
    auto result = talk(*connection);
    idle_->keep(std::move(connection));
    return result;
  } catch (const Error& error) {
    throw advise_about(kServer, error);
  }
}

RedisReply RedisStore::ask(const RedisCommand& command, Deadline deadline) {
  return with_connection(
      deadline, [&](RedisConnection& connection) { return connection.ask(command, deadline); });
}

// Listening begins before the look, so nothing is missed; and a message that is lost after all (a
// server that was replaced by its replica) costs two seconds.
template <class Look>
auto RedisStore::watch(std::unique_ptr<RedisConnection>& ear, const std::string& key, Look look,
                       Deadline deadline) -> decltype(look()) {
  if (auto found = look()) return found;
  try {
    if (!ear) ear = connect(deadline);
    ear->subscribe(channel_ + key, deadline);
    while (true) {
      if (auto found = look()) return found;
      ear->listen(earlier(deadline, Deadline::after(times_->look)));
      if (deadline.expired()) return {};
    }
  } catch (const Error& error) {
    throw advise_about(kServer, error);
  }
}

std::optional<std::string> RedisStore::read_now(const std::string& key, Deadline deadline) {
  return text_or_nothing(ask({"HGET", keys_, key}, deadline));
}

// Of those from `begin` to before `end`; `end` when all are there.
size_t RedisStore::first_missing(const std::vector<std::string>& keys, size_t begin, size_t end,
                                 Deadline deadline) {
  RedisCommand command = {"EVAL", kFirstMissing, "2", keys_, queue_};
  for (size_t i = begin; i < end; ++i) command.push_back(keys[i]);
  const auto number = count_of(ask(command, deadline), static_cast<int64_t>(end - begin));
  return number == 0 ? end : begin + static_cast<size_t>(number) - 1;
}

std::shared_ptr<Store> RedisStore::do_clone() {
  RedisStoreOptions options = options_;
  options.timeout = timeout();
  return std::make_shared<RedisStore>(std::move(options), *times_);
}

void RedisStore::do_set(const std::string& key, const std::string& value, Deadline deadline) {
  ask({"EVAL", kSet, "2", keys_, channel_, key, value}, deadline);
}

std::string RedisStore::do_get(const std::string& key, Deadline deadline) {
  std::unique_ptr<RedisConnection> ear;
  auto value = watch(
      ear, key, [&] { return read_now(key, deadline); }, deadline);
  if (!value) throw nobody_has_set();
  return std::move(*value);
}

int64_t RedisStore::do_add(const std::string& key, int64_t delta, Deadline deadline) {
  const std::string text = std::to_string(delta);
  while (true) {
    const auto sum =
        text_or_nothing(ask({"EVAL", kAdd, "2", keys_, channel_, key, text}, deadline));
    if (sum) {
      int64_t number = 0;
      const char* end = sum->data() + sum->size();
      const auto [read, error] = std::from_chars(sum->data(), end, number);
      if (error != std::errc() || read != end) throw another_answer();
      return number;
    }
    // Redis adds to numbers as it writes them; other stores also to "007".
    const auto value = read_now(key, deadline);
    if (!value) continue;  // it has just been deleted
    Table table;
    table.set(key, *value);
    const auto number = table.sum(key, delta);
    if (!number) throw no_number(*value);
    const std::string desired = std::to_string(*number);
    if (flag_of(ask({"EVAL", kReplace, "1", keys_, key, *value, desired}, deadline))) {
      return *number;
    }
  }
}

std::optional<std::string> RedisStore::do_compare_set(const std::string& key,
                                                      const std::string& expected,
                                                      const std::string& desired,
                                                      Deadline deadline) {
  return text_or_nothing(
      ask({"EVAL", kCompareSet, "2", keys_, channel_, key, expected, desired}, deadline));
}

bool RedisStore::do_check(const std::vector<std::string>& keys, Deadline deadline) {
  return first_missing(keys, 0, keys.size(), deadline) == keys.size();
}

void RedisStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  std::unique_ptr<RedisConnection> ear;
  // Keys that come one by one are not all sent again for each.
  size_t few = keys.size();
  for (size_t next = 0; next < keys.size();) {
    const size_t end = next + std::min(few, keys.size() - next);
    next = first_missing(keys, next, end, deadline);
    few *= 2;
    if (next == end) continue;
    few = kFewKeys;
    const auto came = [&]() -> std::optional<bool> {
      if (!do_check({keys[next]}, deadline)) return std::nullopt;
      return true;
    };
    if (!watch(ear, keys[next], came, deadline)) throw nobody_has_set();
    ++next;
  }
}

bool RedisStore::do_delete_key(const std::string& key, Deadline deadline) {
  return flag_of(ask({"HDEL", keys_, key}, deadline));
}

void RedisStore::do_append(const std::string& key, const std::string& value, Deadline deadline) {
  const std::string limit = std::to_string(kMaxStoreReplyBytes);
  if (!flag_of(ask({"EVAL", kAppend, "2", keys_, channel_, key, value, limit}, deadline))) {
    throw too_long();
  }
}

std::vector<std::string> RedisStore::do_multi_get(const std::vector<std::string>& keys,
                                                  Deadline deadline) {
  RedisCommand command = {"HMGET", keys_};
  command.insert(command.end(), keys.begin(), keys.end());
  auto replies = elements_of(ask(command, deadline));
  if (replies.size() != keys.size()) throw another_answer();
  std::vector<std::string> values;
  for (size_t i = 0; i < keys.size(); ++i) {
    auto value = text_or_nothing(std::move(replies[i]));
    values.push_back(value ? std::move(*value) : do_get(keys[i], deadline));
  }
  return values;
}

void RedisStore::do_multi_set(const std::vector<std::string>& keys,
                              const std::vector<std::string>& values, Deadline deadline) {
  RedisCommand command = {"EVAL", kSet, "2", keys_, channel_};
  for (size_t i = 0; i < keys.size(); ++i) {
    command.push_back(keys[i]);
    command.push_back(values[i]);
  }
  ask(command, deadline);
}

int64_t RedisStore::do_num_keys(Deadline deadline) {
  return count_of(ask({"HLEN", keys_}, deadline));
}

std::vector<std::string> RedisStore::do_list_keys(Deadline deadline) {
  std::vector<std::string> keys;
  for (RedisReply& key : elements_of(ask({"HKEYS", keys_}, deadline))) {
    keys.push_back(text_of(std::move(key)));
  }
  return keys;
}

void RedisStore::do_queue_push(const std::string& key, const std::string& value,
                               Deadline deadline) {
  ask({"EVAL", kPush, "3", queue_ + key, queues_, channel_ + key, key, value}, deadline);
}

std::string RedisStore::do_queue_pop(const std::string& key, Deadline deadline) {
  const std::string list = queue_ + key;
  while (true) {
    RedisReply reply = with_connection(deadline, [&](RedisConnection& connection) {
      // The server itself ends the wait, and then has given nothing away. It knows no place in the
      // queue of one that asks again, so it is asked once for all of the time: 0 is for ever.
      const Millis left{deadline.is_never() ? 0 : std::max(deadline.poll_ms(), 1)};
      connection.send({"BLPOP", list, seconds_of(left)}, deadline);
      return read_popped(
          connection, deadline.is_never() ? deadline : Deadline::after(left + times_->pop_grace));
    });
    if (!reply.is_nil()) {
      auto popped = elements_of(std::move(reply));
      if (popped.size() != 2) throw another_answer();
      return text_of(std::move(popped[1]));
    }
    if (deadline.expired()) throw nothing_was_pushed();
  }
}

std::optional<std::string> RedisStore::do_queue_try_pop(const std::string& key, Deadline deadline) {
  return text_or_nothing(with_connection(deadline, [&](RedisConnection& connection) {
    connection.send({"LPOP", queue_ + key}, deadline);
    return read_popped(connection, answer_by(deadline, *times_));
  }));
}

int64_t RedisStore::do_queue_len(const std::string& key, Deadline deadline) {
  return count_of(ask({"LLEN", queue_ + key}, deadline));
}

void RedisStore::clear() {
  try {
    ask({"EVAL", kClear, "3", keys_, queue_, queues_}, Deadline::in(timeout()));
  } catch (Error& error) {
    error.operation("store clear at " + address());
    throw;
  }
}

}  // namespace farspan::dist
