#include <farspan/c10d/store/etcd_store.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/etcd_client.h>
#include <farspan/c10d/store/refusal.h>
#include <farspan/c10d/store/server_connections.h>
#include <farspan/c10d/store/server_url.h>
#include <farspan/c10d/store/table.h>

namespace farspan::dist {
namespace {

using Kind = EtcdOperation::Kind;

constexpr size_t kOperations = 120;         // of a transaction; etcd allows 128
constexpr size_t kBatchBytes = 512 * 1024;  // of values; etcd takes 1.5 MiB a request
constexpr size_t kValues = 32;              // in an answer
constexpr int64_t kListed = 1000;           // names in an answer

// Numbers in names have one length, so that their order is the names'.
std::string hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

EtcdOperation get_all(EtcdRange range) { return {.kind = Kind::kGet, .range = std::move(range)}; }
EtcdOperation get_of(std::string name) { return get_all({std::move(name), {}}); }
EtcdOperation count_of(EtcdRange range) {
  return {.kind = Kind::kGet, .range = std::move(range), .count_only = true};
}
EtcdOperation put_of(std::string name, std::string value) {
  return {.kind = Kind::kPut, .range = {std::move(name), {}}, .value = std::move(value)};
}
EtcdOperation delete_of(EtcdRange range) {
  return {.kind = Kind::kDelete, .range = std::move(range)};
}

}  // namespace

EtcdStore::EtcdStore(EtcdStoreOptions options) : EtcdStore(std::move(options), ServerTimes()) {}

EtcdStore::EtcdStore(EtcdStoreOptions options, const ServerTimes& times)
    : Store(options.timeout),
      options_(std::move(options)),
      times_(std::make_unique<ServerTimes>(times)),
      base_(names_of_job(options_.prefix)),
      client_(std::make_unique<EtcdClient>(net::HostPort{options_.host, options_.port},
                                           options_.user, options_.password)) {
  const TimePoint start = Clock::now();
  try {
    if (options_.user.empty() && !options_.password.empty()) {
      throw Error(Code::kInvalidArgument, "a password for etcd without a user")
          .advice("give the user as well: etcd://user@host:port");
    }
    keep_trying(Deadline::in(options_.timeout),
                {address(), "start etcd, and check host and port; a firewall may be in between"},
                [&](Deadline deadline) { do_num_keys(deadline); });
  } catch (Error& error) {
    error.operation("join the store at " + address()).elapsed(Clock::now() - start);
    throw;
  }
}

EtcdStore::~EtcdStore() = default;

std::string EtcdStore::address() const {
  return "etcd://" + net::HostPort{options_.host, options_.port}.to_string() +
         "?prefix=" + options_.prefix;
}

// "k:" keys, "t:" the ends of queues, "q:" their entries.
std::string EtcdStore::name_of(const std::string& key) const { return base_ + "k:" + key; }

// The length comes first, so that no queue's entries look like another's.
EtcdRange EtcdStore::entries_of(const std::string& queue) const {
  return etcd_keys_with(base_ + "q:" + std::to_string(queue.size()) + ":" + queue + ":");
}

// The watch begins at the revision after the look, so nothing is missed.
template <class Look>
auto EtcdStore::watch(const std::vector<EtcdRange>& ranges, Look look, Deadline deadline)
    -> decltype(look().value) {
  Pauses pauses(Millis{10}, times_->look);
  while (true) {
    auto found = look();
    if (found.value) return std::move(found.value);
    EtcdWatch changes = client_->watch(ranges, found.revision + 1, deadline);
    while (true) {
      const auto seen = changes.wait(earlier(deadline, Deadline::after(times_->look)));
      if (deadline.expired()) return std::nullopt;
      if (seen == EtcdWatch::Seen::kEnd) break;
      found = look();
      if (found.value) return std::move(found.value);
    }
    pauses.pause(deadline);
    if (deadline.expired()) return std::nullopt;
  }
}

void EtcdStore::update(const std::string& key, const Change& change, Deadline deadline) {
  const std::string name = name_of(key);
  auto entries = client_->transact({get_of(name)}, deadline).results[0].entries;
  for (Pauses pauses(Millis{1}, Millis{50});; pauses.pause(deadline)) {
    std::optional<std::string> value;
    int64_t mod_revision = 0;
    if (!entries.empty()) {
      value = std::move(entries[0].value);
      mod_revision = entries[0].mod_revision;
    }
    const auto desired = change(value);
    if (!desired) return;
    auto outcome = client_->transact({{name, mod_revision}}, {put_of(name, *desired)},
                                     {get_of(name)}, deadline);
    if (outcome.succeeded) return;
    entries = std::move(outcome.results[0].entries);  // somebody else was faster
  }
}

EtcdStore::Found<std::string> EtcdStore::read_now(const std::string& key, Deadline deadline) {
  auto outcome = client_->transact({get_of(name_of(key))}, deadline);
  Found<std::string> found{std::nullopt, outcome.revision};
  auto& entries = outcome.results[0].entries;
  if (!entries.empty()) found.value = std::move(entries[0].value);
  return found;
}

// Of those from `from` on that are neither keys nor queues; nothing when all are there.
EtcdStore::Found<size_t> EtcdStore::first_missing(const std::vector<std::string>& keys, size_t from,
                                                  Deadline deadline) {
  for (size_t begin = from; begin < keys.size(); begin += kOperations / 2) {
    const size_t end = std::min(keys.size(), begin + kOperations / 2);
    std::vector<EtcdOperation> operations;
    for (size_t i = begin; i < end; ++i) {
      operations.push_back(count_of({name_of(keys[i]), {}}));
      operations.push_back(count_of(entries_of(keys[i])));
    }
    const auto outcome = client_->transact(operations, deadline);
    for (size_t i = begin; i < end; ++i) {
      const size_t at = (i - begin) * 2;
      if (outcome.results[at].count == 0 && outcome.results[at + 1].count == 0) {
        return {i, outcome.revision};
      }
    }
  }
  return {};
}

std::shared_ptr<Store> EtcdStore::do_clone() {
  EtcdStoreOptions options = options_;
  options.timeout = timeout();
  return std::make_shared<EtcdStore>(std::move(options), *times_);
}

void EtcdStore::do_set(const std::string& key, const std::string& value, Deadline deadline) {
  client_->transact({put_of(name_of(key), value)}, deadline);
}

std::string EtcdStore::do_get(const std::string& key, Deadline deadline) {
  auto value = watch(
      {{name_of(key), {}}}, [&] { return read_now(key, deadline); }, deadline);
  if (!value) throw nobody_has_set();
  return std::move(*value);
}

int64_t EtcdStore::do_add(const std::string& key, int64_t delta, Deadline deadline) {
  int64_t sum = 0;
  const auto add = [&](const std::optional<std::string>& value) {
    Table table;
    if (value) table.set(key, *value);
    const auto number = table.sum(key, delta);
    if (!number) throw no_number(*value);
    sum = *number;
    return std::to_string(sum);
  };
  update(key, add, deadline);
  return sum;
}

std::optional<std::string> EtcdStore::do_compare_set(const std::string& key,
                                                     const std::string& expected,
                                                     const std::string& desired,
                                                     Deadline deadline) {
  std::optional<std::string> now;
  const auto exchange = [&](const std::optional<std::string>& value) -> std::optional<std::string> {
    const bool matches = value ? *value == expected : expected.empty();
    now = matches ? desired : value;
    return matches ? now : std::nullopt;
  };
  update(key, exchange, deadline);
  return now;
}

bool EtcdStore::do_check(const std::vector<std::string>& keys, Deadline deadline) {
  return !first_missing(keys, 0, deadline).value;
}

void EtcdStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  for (size_t next = 0;; ++next) {
    const auto missing = first_missing(keys, next, deadline).value;
    if (!missing) return;
    next = *missing;
    const std::vector<std::string> one = {keys[next]};
    const auto came = [&] {
      const auto found = first_missing(one, 0, deadline);
      return Found<bool>{found.value ? std::nullopt : std::optional(true), found.revision};
    };
    if (!watch({{name_of(keys[next]), {}}, entries_of(keys[next])}, came, deadline)) {
      throw nobody_has_set();
    }
  }
}

bool EtcdStore::do_delete_key(const std::string& key, Deadline deadline) {
  return client_->transact({delete_of({name_of(key), {}})}, deadline).results[0].count > 0;
}

void EtcdStore::do_append(const std::string& key, const std::string& value, Deadline deadline) {
  const auto append = [&](const std::optional<std::string>& old) {
    if (old && old->size() + value.size() > kMaxStoreReplyBytes) throw too_long();
    return old.value_or("") + value;
  };
  update(key, append, deadline);
}

std::vector<std::string> EtcdStore::do_multi_get(const std::vector<std::string>& keys,
                                                 Deadline deadline) {
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    std::vector<EtcdOperation> operations;
    const size_t end = std::min(keys.size(), values.size() + kValues);
    for (size_t i = values.size(); i < end; ++i) operations.push_back(get_of(name_of(keys[i])));
    for (EtcdResult& result : client_->transact(operations, deadline).results) {
      values.push_back(result.entries.empty() ? do_get(keys[values.size()], deadline)
                                              : std::move(result.entries[0].value));
    }
  }
  return values;
}

void EtcdStore::do_multi_set(const std::vector<std::string>& keys,
                             const std::vector<std::string>& values, Deadline deadline) {
  std::vector<EtcdOperation> operations;
  std::set<std::string_view> names;  // a transaction sets a key once
  size_t bytes = 0;
  const auto flush = [&] {
    if (!operations.empty()) client_->transact(operations, deadline);
    operations.clear();
    names.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    const size_t size = keys[i].size() + values[i].size();
    if (operations.size() == kOperations || bytes + size > kBatchBytes || names.contains(keys[i])) {
      flush();
    }
    operations.push_back(put_of(name_of(keys[i]), values[i]));
    names.insert(keys[i]);
    bytes += size;
  }
  flush();
}

int64_t EtcdStore::do_num_keys(Deadline deadline) {
  return client_->transact({count_of(etcd_keys_with(base_ + "k:"))}, deadline).results[0].count;
}

std::vector<std::string> EtcdStore::do_list_keys(Deadline deadline) {
  EtcdOperation first = get_all(etcd_keys_with(base_ + "k:"));
  first.keys_only = true;
  first.limit = kListed;
  EtcdOperation page = first;
  std::vector<std::string> keys;
  while (true) {
    EtcdOutcome outcome;
    try {
      outcome = client_->transact({page}, deadline);
    } catch (const Error& error) {
      if (page.revision == 0 || !is_compacted(error)) throw;
      page = first;  // the state of the pages before is gone
      keys.clear();
      continue;
    }
    const auto& entries = outcome.results[0].entries;
    for (const EtcdEntry& entry : entries) keys.push_back(entry.key.substr(base_.size() + 2));
    if (static_cast<int64_t>(entries.size()) < kListed) return keys;
    page.range.first = entries.back().key + std::string(1, '\0');
    // The next page is of the same state.
    if (page.revision == 0) page.revision = outcome.revision;
  }
}

// Entries are named by the revision of the queue's end as the one before has left it: so they are
// in order, and of two who push at once one finds another end and tries again.
void EtcdStore::do_queue_push(const std::string& key, const std::string& value, Deadline deadline) {
  const std::string end = base_ + "t:" + key;
  auto outcome = client_->transact({get_of(end)}, deadline);
  for (Pauses pauses(Millis{1}, Millis{50});; pauses.pause(deadline)) {
    const auto& entries = outcome.results[0].entries;
    const int64_t last = entries.empty() ? 0 : entries[0].mod_revision;
    const std::string name = entries_of(key).first + hex(static_cast<uint64_t>(last));
    outcome = client_->transact({{end, last}}, {put_of(end, ""), put_of(name, value)},
                                {get_of(end)}, deadline);
    if (outcome.succeeded) return;
  }
}

EtcdStore::Found<std::string> EtcdStore::pop_now(const std::string& queue, Deadline deadline) {
  EtcdOperation first = get_all(entries_of(queue));
  first.limit = 1;
  auto outcome = client_->transact({first}, deadline);
  while (true) {
    auto& entries = outcome.results[0].entries;
    if (entries.empty()) return {std::nullopt, outcome.revision};
    if (deadline.expired()) throw out_of_time();  // nothing is taken for who has gone
    EtcdEntry entry = std::move(entries[0]);
    try {
      outcome = client_->transact({{entry.key, entry.mod_revision}}, {delete_of({entry.key, {}})},
                                  {first}, answer_by(deadline, *times_));
    } catch (const Error& error) {
      throw may_have_taken(error);
    }
    // Else another got it, and there is a next one or none.
    if (outcome.succeeded) return {std::move(entry.value), outcome.revision};
  }
}

std::string EtcdStore::do_queue_pop(const std::string& key, Deadline deadline) {
  auto value = watch(
      {entries_of(key)}, [&] { return pop_now(key, deadline); }, deadline);
  if (!value) throw nothing_was_pushed();
  return std::move(*value);
}

std::optional<std::string> EtcdStore::do_queue_try_pop(const std::string& key, Deadline deadline) {
  return pop_now(key, deadline).value;
}

int64_t EtcdStore::do_queue_len(const std::string& key, Deadline deadline) {
  return client_->transact({count_of(entries_of(key))}, deadline).results[0].count;
}

void EtcdStore::clear() {
  try {
    client_->transact({delete_of(etcd_keys_with(base_))}, Deadline::in(timeout()));
  } catch (Error& error) {
    error.operation("store clear at " + address());
    throw;
  }
}

}  // namespace farspan::dist
