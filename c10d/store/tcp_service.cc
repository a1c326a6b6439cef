#include <farspan/c10d/store/tcp_service.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/store/store.h>

namespace farspan::dist {
namespace {
constexpr size_t kGreetingBytes = 5;  // VALIDATE and its magic
}

void TcpService::opened(ClientId id, TimePoint now) {
  clients_.try_emplace(id);
  strangers_.emplace_back(id, now);
  ++strangers_alive_;
}

TcpService::Verdict TcpService::received(ClientId id, std::string_view bytes) {
  Client& client = clients_.at(id);
  if (client.ignored) return Verdict::kIgnore;
  if (client.unread.empty()) return consume(id, client, bytes);
  const std::string all = std::exchange(client.unread, {}).append(bytes);
  return consume(id, client, all);
}

TcpService::Verdict TcpService::resume(ClientId id) {
  Client& client = clients_.at(id);
  if (client.ignored) return Verdict::kIgnore;
  const std::string rest = std::exchange(client.unread, {});
  return consume(id, client, rest);
}

TcpService::Verdict TcpService::consume(ClientId id, Client& client, std::string_view bytes) {
  if (!client.validated) {
    const Verdict verdict = greet(client, &bytes);
    if (verdict != Verdict::kRead || !client.validated) return verdict;
  }
  const size_t before = client.output.size();
  Verdict verdict = Verdict::kRead;
  while (!bytes.empty() && verdict == Verdict::kRead) {
    if (client.output.size() >= limits_.max_output) {
      client.unread.assign(bytes);
      verdict = Verdict::kPause;
      break;
    }
    const auto status = client.reader.read(&bytes);
    if (status == TcpCommandReader::Status::kMore) break;
    if (status == TcpCommandReader::Status::kBroken || !execute(id, client, client.reader.take())) {
      verdict = Verdict::kClose;
    }
  }
  if (client.output.size() != before) touched_.push_back(id);
  return verdict;
}

TcpService::Verdict TcpService::greet(Client& client, std::string_view* bytes) {
  std::string greeting;
  put_code(greeting, TcpCode::kValidate);
  put_u32(greeting, kTcpMagic);
  // `unread` holds the part of the greeting that has come.
  const size_t part = std::min(kGreetingBytes - client.unread.size(), bytes->size());
  client.unread.append(bytes->substr(0, part));
  bytes->remove_prefix(part);
  if (!greeting.starts_with(client.unread)) {
    client.ignored = true;
    client.unread.clear();
    return Verdict::kIgnore;
  }
  if (client.unread.size() == kGreetingBytes) {
    client.unread.clear();
    client.validated = true;
    --strangers_alive_;
  }
  return Verdict::kRead;
}

void TcpService::closed(ClientId id) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) return;
  cancel_waits(it->second);
  settle_grants(it->second, nullptr);
  if (!it->second.validated) --strangers_alive_;
  clients_.erase(it);
}

std::string& TcpService::output(ClientId id) { return clients_.at(id).output; }

std::vector<TcpService::ClientId> TcpService::take_touched() { return std::exchange(touched_, {}); }

void TcpService::touch(ClientId id) {
  if (!clients_.at(id).output.empty()) touched_.push_back(id);
}

std::vector<TcpService::ClientId> TcpService::strangers_due(TimePoint now) {
  std::vector<ClientId> due;
  size_t left = strangers_alive_;
  while (!strangers_.empty()) {
    const auto [id, since] = strangers_.front();
    const auto it = clients_.find(id);
    if (it != clients_.end() && !it->second.validated) {
      if (now < since + limits_.handshake && left <= limits_.max_strangers) break;
      due.push_back(id);
      --left;
    }
    strangers_.pop_front();
  }
  return due;
}

Deadline TcpService::next_due() const {
  if (strangers_.empty()) return Deadline::never();
  return Deadline(strangers_.front().second + limits_.handshake);
}

bool TcpService::execute(ClientId id, Client& client, TcpCommand command) {
  settle_grants(client, &command);
  auto& texts = command.texts;
  switch (command.code) {
    case TcpCode::kValidate:
      return false;  // once is enough
    case TcpCode::kSet:
      store(texts[0], std::move(texts[1]));
      return true;
    case TcpCode::kCompareSet:
      return execute_compare_set(client, command);
    case TcpCode::kGet:
      return reply_values(client, texts);
    case TcpCode::kAdd: {
      const auto sum = table_.add(texts[0], command.number);
      if (!sum) return false;  // the protocol has no way to say it
      put_i64(client.output, *sum);
      wake_all(texts[0]);
      return true;
    }
    case TcpCode::kNumKeys:
      put_i64(client.output, static_cast<int64_t>(table_.size()));
      return true;
    case TcpCode::kDeleteKey:
      put_i64(client.output, table_.erase(texts[0]) ? 1 : 0);
      return true;
    case TcpCode::kAppend:
      return execute_append(command);
    case TcpCode::kCancelWait:
      cancel_waits(client);
      put_u8(client.output, kTcpWaitCancelled);
      return true;
    case TcpCode::kPing:
      put_u32(client.output, static_cast<uint32_t>(command.number));
      return true;
    case TcpCode::kListKeys:
      return reply_keys(client);
    case TcpCode::kQueuePush:
    case TcpCode::kQueuePop:
    case TcpCode::kQueueLen:
      return execute_queue(client, command);
    case TcpCode::kCheck:
    case TcpCode::kWait:
    case TcpCode::kMultiGet:
    case TcpCode::kMultiSet:
      return execute_many(id, client, command);
  }
  return false;
}

bool TcpService::execute_compare_set(Client& client, TcpCommand& command) {
  const std::string& key = command.texts[0];
  const std::string& expected = command.texts[1];
  std::string& desired = command.texts[2];
  if (table_.matches(key, expected)) {
    put_text(client.output, desired);
    store(key, std::move(desired));
  } else {
    // Of a missing key PyTorch returns what was expected; clients tell by that.
    const std::string* value = table_.find(key);
    put_text(client.output, value ? *value : expected);
  }
  return true;
}

bool TcpService::execute_append(TcpCommand& command) {
  if (!table_.append(command.texts[0], command.texts[1], kMaxStoreReplyBytes)) return false;
  wake_all(command.texts[0]);
  return true;
}

bool TcpService::execute_queue(Client& client, TcpCommand& command) {
  const std::string& name = command.texts[0];
  if (command.code == TcpCode::kQueuePush) {
    table_.push(name, std::move(command.texts[1]));
    wake_one(name);
    return true;
  }
  put_i64(client.output, static_cast<int64_t>(table_.queue_size(name)));
  if (command.code == TcpCode::kQueuePop) {
    if (const auto value = table_.pop(name)) put_text(client.output, *value);
  }
  return true;
}

bool TcpService::execute_many(ClientId id, Client& client, TcpCommand& command) {
  auto& texts = command.texts;
  switch (command.code) {
    case TcpCode::kCheck: {
      const bool all = std::all_of(texts.begin(), texts.end(),
                                   [&](const std::string& key) { return table_.exists(key); });
      put_u8(client.output, all ? kTcpAllExist : kTcpNotAll);
      return true;
    }
    case TcpCode::kWait:
      return begin_wait(id, client, std::move(texts));
    case TcpCode::kMultiGet:
      return reply_values(client, texts);
    default:  // kMultiSet
      for (size_t i = 0; i + 1 < texts.size(); i += 2) store(texts[i], std::move(texts[i + 1]));
      return true;
  }
}

bool TcpService::reply_values(Client& client, const std::vector<std::string>& keys) {
  size_t bytes = 0;
  for (const std::string& key : keys) {
    const std::string* value = table_.find(key);
    bytes += sizeof(uint64_t) + (value ? value->size() : 0);
  }
  // One small command must not ask for more memory than this host has.
  if (bytes > kMaxStoreReplyBytes + kMaxTcpKeys * sizeof(uint64_t)) return false;
  for (const std::string& key : keys) {
    const std::string* value = table_.find(key);
    put_text(client.output, value ? std::string_view(*value) : std::string_view());
  }
  return true;
}

bool TcpService::reply_keys(Client& client) {
  size_t bytes = 0;
  for (const auto& [key, value] : table_.values()) bytes += sizeof(uint64_t) + key.size();
  if (bytes > kMaxStoreReplyBytes) return false;
  put_i64(client.output, static_cast<int64_t>(table_.size()));
  for (const auto& [key, value] : table_.values()) put_text(client.output, key);
  return true;
}

void TcpService::store(const std::string& key, std::string value) {
  table_.set(key, std::move(value));
  wake_all(key);
}

bool TcpService::begin_wait(ClientId id, Client& client, std::vector<std::string> keys) {
  Wait wait{id, std::move(keys), {}};
  for (const std::string& key : wait.keys) {
    if (!table_.exists(key)) wait.missing.insert(key);
  }
  if (wait.missing.empty()) {
    put_u8(client.output, kTcpStopWaiting);
    return true;
  }
  client.waited_keys += wait.keys.size();
  if (client.waited_keys > limits_.max_waited_keys) return false;
  const uint64_t number = next_wait_++;
  for (const std::string& key : wait.missing) waiting_[key].insert(number);
  client.waits.insert(number);
  waits_.emplace(number, std::move(wait));
  return true;
}

void TcpService::cancel_waits(Client& client) {
  while (!client.waits.empty()) end_wait(*client.waits.begin());
}

void TcpService::end_wait(uint64_t number) {
  const auto it = waits_.find(number);
  for (const std::string& key : it->second.missing) {
    const auto line = waiting_.find(key);
    line->second.erase(number);
    if (line->second.empty()) waiting_.erase(line);
  }
  Client& client = clients_.at(it->second.client);
  client.waits.erase(number);
  client.waited_keys -= it->second.keys.size();
  waits_.erase(it);
}

bool TcpService::advance(uint64_t number, const std::string& key) {
  Wait& wait = waits_.at(number);
  wait.missing.erase(key);
  const auto line = waiting_.find(key);
  line->second.erase(number);
  if (line->second.empty()) waiting_.erase(line);
  if (!wait.missing.empty()) return false;
  // One that came earlier may have been deleted since.
  for (const std::string& other : wait.keys) {
    if (!table_.exists(other)) {
      wait.missing.insert(other);
      waiting_[other].insert(number);
    }
  }
  if (!wait.missing.empty()) return false;
  put_u8(clients_.at(wait.client).output, kTcpStopWaiting);
  touched_.push_back(wait.client);
  end_wait(number);
  return true;
}

void TcpService::wake_all(const std::string& key) {
  const auto line = waiting_.find(key);
  if (line == waiting_.end()) return;
  const std::vector<uint64_t> numbers(line->second.begin(), line->second.end());
  for (const uint64_t number : numbers) advance(number, key);
}

void TcpService::wake_one(const std::string& key) {
  const auto line = waiting_.find(key);
  if (line == waiting_.end()) return;
  const std::vector<uint64_t> numbers(line->second.begin(), line->second.end());
  for (const uint64_t number : numbers) {
    const ClientId client = waits_.at(number).client;
    if (advance(number, key)) {
      clients_.at(client).granted.push_back(key);
      return;
    }
  }
}

// A client that was woken for a value and does not take it, or has gone, must not keep it from the
// next in line.
void TcpService::settle_grants(Client& client, const TcpCommand* next) {
  for (const std::string& key : std::exchange(client.granted, {})) {
    const bool takes = next && next->code == TcpCode::kQueuePop && next->texts[0] == key;
    if (!takes && table_.queue_size(key) > 0) wake_one(key);
  }
}

}  // namespace farspan::dist
