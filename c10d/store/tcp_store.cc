#include <farspan/c10d/store/tcp_store.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/refusal.h>
#include <farspan/c10d/store/server_connections.h>
#include <farspan/c10d/store/table.h>
#include <farspan/c10d/store/tcp_connection.h>
#include <farspan/c10d/store/tcp_wire.h>

namespace farspan::dist {
namespace {

constexpr Millis kSpinPause{10};
constexpr Millis kAnswer{5'000};
constexpr Millis kWorkersPause{10};  // between looks at how many have come

std::string on_wire(const std::string& key) { return "/" + key; }

std::vector<std::string> on_wire(const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) names.push_back(on_wire(key));
  return names;
}

// A command of texts only.
std::string command_of(TcpCode code, std::initializer_list<std::string_view> texts) {
  std::string command;
  put_code(command, code);
  for (const std::string_view text : texts) put_text(command, text);
  return command;
}

std::string command_of_many(TcpCode code, const std::vector<std::string>& names) {
  std::string command;
  put_code(command, code);
  put_i64(command, static_cast<int64_t>(names.size()));
  for (const std::string& name : names) put_text(command, name);
  return command;
}

std::string random_text() {
  std::random_device random;
  std::string text = "farspan:";
  for (int i = 0; i < 4; ++i) text += std::to_string(random()) + ".";
  return text;
}

std::shared_ptr<TcpStoreServer> serve(const TcpStoreOptions& options) {
  if (!options.is_server) return nullptr;
  TcpStoreServerOptions server;
  server.host = options.bind_host.empty() ? options.host : options.bind_host;
  server.port = options.port;
  return TcpStoreServer::shared(server);
}

Error advise(Error error) {
  if (error.code() == Code::kDisconnected && error.advice().empty()) {
    error.advice("the process that hosts the store has ended: its own errors say why");
  } else if (error.code() == Code::kTimeout && error.advice().empty()) {
    error.advice("the process that hosts the store is stuck or cannot be reached");
  }
  return error;
}

}  // namespace

template <class Talk>
auto TcpStore::with_connection(Deadline deadline, Talk talk) {
  std::unique_ptr<TcpConnection> connection = idle_->take();
  try {
    if (!connection) connection = std::make_unique<TcpConnection>(where_, deadline);
    if constexpr (std::is_void_v<decltype(talk(*connection))>) {
      talk(*connection);
      idle_->keep(std::move(connection));
    } else {
      auto result = talk(*connection);
      idle_->keep(std::move(connection));
      return result;
    }
  } catch (const Error& error) {
    throw advise(error);
  }
}

TcpStore::TcpStore(const TcpStoreOptions& options)
    : Store(options.timeout),
      server_(serve(options)),
      where_(server_ ? server_->where() : net::HostPort{options.host, options.port}),
      absent_(random_text()),
      idle_(std::make_unique<IdleConnections<TcpConnection>>()) {
  const TimePoint start = Clock::now();
  const Deadline deadline = Deadline::in(options.timeout);
  try {
    connect(deadline);
    if (options.world_size > 0) meet(options.world_size, options.wait_for_workers, deadline);
  } catch (Error& error) {
    if (error.operation().empty()) {
      error.operation("join the store at " + address()).elapsed(Clock::now() - start);
    }
    throw;
  }
}

TcpStore::TcpStore(net::HostPort where, std::shared_ptr<TcpStoreServer> server, Millis timeout)
    : Store(timeout),
      server_(std::move(server)),
      where_(std::move(where)),
      absent_(random_text()),
      idle_(std::make_unique<IdleConnections<TcpConnection>>()) {}

TcpStore::~TcpStore() = default;

// The process that hosts the store may come later than this one.
void TcpStore::connect(Deadline deadline) {
  const char* const advice =
      "start the worker that hosts it (rank 0), and check MASTER_ADDR and MASTER_PORT; a firewall "
      "may be in between";
  keep_trying(deadline, {address(), advice, std::nullopt}, [&](Deadline attempt) {
    idle_->keep(std::make_unique<TcpConnection>(where_, attempt));
  });
}

// As PyTorch counts, so that workers of both kinds can be counted together.
void TcpStore::meet(int world_size, bool wait, Deadline deadline) {
  const auto add = [&](int64_t delta) {
    // So that the last look, too, is answered.
    const Deadline answer = deadline.remaining() > kAnswer ? deadline : Deadline::after(kAnswer);
    return with_connection(answer, [&](TcpConnection& connection) {
      std::string command = command_of(TcpCode::kAdd, {kTcpWorkersKey});
      put_i64(command, delta);
      connection.send(command, answer);
      return connection.read_i64(answer);
    });
  };
  int64_t come = add(1);
  while (server_ && wait && come < world_size) {
    if (deadline.expired()) {
      throw Error(Code::kTimeout,
                  std::to_string(come) + " of " + std::to_string(world_size) + " workers have come")
          .advice("start the others, or look at their errors");
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(kWorkersPause, deadline.remaining()));
    come = add(0);
  }
}

std::shared_ptr<Store> TcpStore::do_clone() {
  return std::shared_ptr<Store>(new TcpStore(where_, server_, timeout()));
}

// The protocol's own read cannot tell a missing key from an empty value. A compare-and-set that
// expects what nobody stores changes nothing; of a missing key it returns what was expected.
std::optional<std::string> TcpStore::read_now(const std::string& key, Deadline deadline) {
  auto value = with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kCompareSet, {on_wire(key), absent_, absent_}), deadline);
    return connection.read_text(deadline);
  });
  if (value == absent_) return std::nullopt;
  return value;
}

void TcpStore::do_set(const std::string& key, const std::string& value, Deadline deadline) {
  with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kSet, {on_wire(key), value}), deadline);
    connection.ping(deadline);
  });
}

std::string TcpStore::do_get(const std::string& key, Deadline deadline) {
  for (Millis pause{0};; pause = std::min(pause * 2 + Millis{1}, kSpinPause)) {
    if (auto value = read_now(key, deadline)) return std::move(*value);
    if (deadline.expired()) throw nobody_has_set();
    std::this_thread::sleep_for(pause);
    do_wait({key}, deadline);  // over at once, again and again, while a queue has that name
  }
}

int64_t TcpStore::do_add(const std::string& key, int64_t delta, Deadline deadline) {
  try {
    return with_connection(deadline, [&](TcpConnection& connection) {
      std::string command = command_of(TcpCode::kAdd, {on_wire(key)});
      put_i64(command, delta);
      connection.send(command, deadline);
      return connection.read_i64(deadline);
    });
  } catch (const Error& error) {
    // To a value that is no number, the protocol's only answer is to close the connection.
    if (error.code() != Code::kDisconnected) throw;
    Table table;
    try {
      const auto value = read_now(key, deadline);
      if (value) table.set(key, *value);
    } catch (const Error&) {
      throw error;  // the server has gone indeed
    }
    if (table.sum(key, delta)) throw;
    throw no_number(*table.find(key));
  }
}

std::optional<std::string> TcpStore::do_compare_set(const std::string& key,
                                                    const std::string& expected,
                                                    const std::string& desired, Deadline deadline) {
  // Nothing would change; and the answer would not tell whether the key is there.
  if (expected == desired && !expected.empty()) return read_now(key, deadline);
  auto value = with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kCompareSet, {on_wire(key), expected, desired}), deadline);
    return connection.read_text(deadline);
  });
  // Had it been the value, `desired` would be now.
  if (value == expected && !expected.empty()) return std::nullopt;
  return value;
}

bool TcpStore::do_check(const std::vector<std::string>& keys, Deadline deadline) {
  return with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of_many(TcpCode::kCheck, on_wire(keys)), deadline);
    return connection.read_u8(deadline) == kTcpAllExist;
  });
}

void TcpStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  const bool came = with_connection(deadline, [&](TcpConnection& connection) {
    return connection.wait(on_wire(keys), deadline);
  });
  if (!came) throw nobody_has_set();
}

bool TcpStore::do_delete_key(const std::string& key, Deadline deadline) {
  return with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kDeleteKey, {on_wire(key)}), deadline);
    return connection.read_i64(deadline) > 0;
  });
}

void TcpStore::do_append(const std::string& key, const std::string& value, Deadline deadline) {
  with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kAppend, {on_wire(key), value}), deadline);
    connection.ping(deadline);
  });
}

std::vector<std::string> TcpStore::do_multi_get(const std::vector<std::string>& keys,
                                                Deadline deadline) {
  do_wait(keys, deadline);
  auto values = with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of_many(TcpCode::kMultiGet, on_wire(keys)), deadline);
    return connection.read_texts(keys.size(), deadline);
  });
  for (size_t i = 0; i < keys.size(); ++i) {
    // Empty, or deleted since.
    if (values[i].empty()) values[i] = do_get(keys[i], deadline);
  }
  return values;
}

void TcpStore::do_multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values, Deadline deadline) {
  std::string command;
  put_code(command, TcpCode::kMultiSet);
  put_i64(command, static_cast<int64_t>(keys.size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    put_text(command, on_wire(keys[i]));
    put_text(command, values[i]);
  }
  with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command, deadline);
    connection.ping(deadline);
  });
}

int64_t TcpStore::do_num_keys(Deadline deadline) {
  std::string command = command_of(TcpCode::kNumKeys, {});
  command += command_of_many(TcpCode::kCheck, {kTcpWorkersKey});
  return with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command, deadline);
    const int64_t all = connection.read_i64(deadline);
    return connection.read_u8(deadline) == kTcpAllExist ? all - 1 : all;
  });
}

std::vector<std::string> TcpStore::do_list_keys(Deadline deadline) {
  auto names = with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kListKeys, {}), deadline);
    const int64_t count = connection.read_i64(deadline);
    if (count < 0) throw Error(Code::kCorrupt, "a negative number of keys");
    return connection.read_texts(static_cast<size_t>(count), deadline);
  });
  std::erase_if(names, [](const std::string& name) { return !name.starts_with('/'); });
  for (std::string& name : names) name.erase(0, 1);
  return names;
}

void TcpStore::do_queue_push(const std::string& key, const std::string& value, Deadline deadline) {
  with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kQueuePush, {on_wire(key), value}), deadline);
    connection.ping(deadline);
  });
}

std::string TcpStore::do_queue_pop(const std::string& key, Deadline deadline) {
  if (deadline.expired()) throw out_of_time();
  // One connection for the wait and the pop: the server keeps the value for the one it woke, and
  // wakes nobody else for it. So that one pops, even if its time is over by then.
  auto value =
      with_connection(deadline, [&](TcpConnection& connection) -> std::optional<std::string> {
        for (Millis pause{0};; pause = std::min(pause * 2 + Millis{1}, kSpinPause)) {
          if (auto popped = connection.pop(on_wire(key), deadline)) return popped;
          if (deadline.expired()) return std::nullopt;
          std::this_thread::sleep_for(pause);
          // Over at once, again and again, while a key has that name.
          if (!connection.wait({on_wire(key)}, deadline)) return std::nullopt;
        }
      });
  if (!value) throw nothing_was_pushed();
  return std::move(*value);
}

std::optional<std::string> TcpStore::do_queue_try_pop(const std::string& key, Deadline deadline) {
  if (deadline.expired()) throw out_of_time();
  return with_connection(
      deadline, [&](TcpConnection& connection) { return connection.pop(on_wire(key), deadline); });
}

int64_t TcpStore::do_queue_len(const std::string& key, Deadline deadline) {
  return with_connection(deadline, [&](TcpConnection& connection) {
    connection.send(command_of(TcpCode::kQueueLen, {on_wire(key)}), deadline);
    return connection.read_i64(deadline);
  });
}

}  // namespace farspan::dist
