#include <farspan/c10d/store/store.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {
namespace {

constexpr size_t kNamedKeys = 3;           // in a message
constexpr size_t kShownKeyBytes = 100;     // of each
constexpr size_t kProbedKeys = 64;         // after a wait that failed
constexpr std::chrono::seconds kProbe{2};  // and for how long at most

std::string quoted(const std::string& key) {
  std::string text = "'";
  for (const char c : key.substr(0, kShownKeyBytes)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (key.size() > kShownKeyBytes ? "...'" : "'");
}

std::string quoted(const std::vector<std::string>& keys) {
  std::string text;
  for (size_t i = 0; i < std::min(keys.size(), kNamedKeys); ++i) {
    text += (i > 0 ? ", " : "") + quoted(keys[i]);
  }
  if (keys.size() > kNamedKeys) {
    text += " and " + std::to_string(keys.size() - kNamedKeys) + " more";
  }
  return text;
}

void check_keys(const std::vector<std::string>& keys) {
  if (keys.size() > kMaxStoreKeys) {
    throw Error(Code::kInvalidArgument, std::to_string(keys.size()) + " keys in one call, " +
                                            std::to_string(kMaxStoreKeys) + " are allowed")
        .advice("split the call");
  }
  for (const std::string& key : keys) {
    if (key.size() > kMaxStoreKeyBytes) {
      throw Error(Code::kInvalidArgument, "a key of " + std::to_string(key.size()) + " bytes, " +
                                              std::to_string(kMaxStoreKeyBytes) + " are allowed");
    }
  }
}

void check_value(const std::string& value) {
  if (value.size() > kMaxStoreValueBytes) {
    throw Error(Code::kInvalidArgument, "a value of " + std::to_string(value.size()) + " bytes, " +
                                            std::to_string(kMaxStoreValueBytes) + " are allowed")
        .advice("a store is for addresses and settings: send tensors by RPC");
  }
}

Error no_queues() {
  return Error(Code::kInvalidArgument, "this store has no queues")
      .advice("use a TCP store, or one in memory");
}

}  // namespace

template <class Body>
auto Store::run(std::string_view verb, const std::vector<std::string>& keys, Millis timeout,
                Body body) {
  const TimePoint start = Clock::now();
  try {
    check_keys(keys);
    return body(Deadline::in(timeout));
  } catch (Error& error) {
    if (!error.operation().empty()) throw;
    std::string operation = "store " + std::string(verb);
    if (!keys.empty()) operation += " " + quoted(keys);
    error.operation(operation + " at " + address()).elapsed(Clock::now() - start);
    throw;
  }
}

std::shared_ptr<Store> Store::clone() {
  return run("clone", {}, timeout(), [&](Deadline) {
    auto copy = do_clone();
    copy->set_timeout(timeout());
    return copy;
  });
}

void Store::set(const std::string& key, const std::string& value) {
  run("set", {key}, timeout(), [&](Deadline deadline) {
    check_value(value);
    do_set(key, value, deadline);
  });
}

std::string Store::get(const std::string& key, Millis timeout) {
  return run("get", {key}, timeout, [&](Deadline deadline) { return do_get(key, deadline); });
}

int64_t Store::add(const std::string& key, int64_t delta) {
  return run("add to", {key}, timeout(),
             [&](Deadline deadline) { return do_add(key, delta, deadline); });
}

std::optional<std::string> Store::compare_set(const std::string& key, const std::string& expected,
                                              const std::string& desired) {
  return run("compare_set", {key}, timeout(), [&](Deadline deadline) {
    check_value(expected);
    check_value(desired);
    return do_compare_set(key, expected, desired, deadline);
  });
}

bool Store::check(const std::vector<std::string>& keys) {
  return run("check", keys, timeout(),
             [&](Deadline deadline) { return keys.empty() || do_check(keys, deadline); });
}

void Store::wait(const std::vector<std::string>& keys, Millis timeout) {
  run("wait for", keys, timeout, [&](Deadline deadline) {
    if (keys.empty()) return;
    try {
      do_wait(keys, deadline);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout || keys.size() == 1) throw;
      std::vector<std::string> missing;
      const Deadline probe = Deadline::after(kProbe);
      for (size_t i = 0; i < std::min(keys.size(), kProbedKeys); ++i) {
        if (!do_check({keys[i]}, probe)) missing.push_back(keys[i]);
      }
      if (missing.empty()) throw;
      throw Error(Code::kTimeout, "nobody has set " + quoted(missing)).advice(error.advice());
    }
  });
}

bool Store::delete_key(const std::string& key) {
  return run("delete_key", {key}, timeout(),
             [&](Deadline deadline) { return do_delete_key(key, deadline); });
}

void Store::append(const std::string& key, const std::string& value) {
  run("append to", {key}, timeout(), [&](Deadline deadline) {
    check_value(value);
    do_append(key, value, deadline);
  });
}

std::vector<std::string> Store::multi_get(const std::vector<std::string>& keys) {
  return run("multi_get", keys, timeout(), [&](Deadline deadline) {
    return keys.empty() ? std::vector<std::string>{} : do_multi_get(keys, deadline);
  });
}

void Store::multi_set(const std::vector<std::string>& keys,
                      const std::vector<std::string>& values) {
  run("multi_set", keys, timeout(), [&](Deadline deadline) {
    if (keys.size() != values.size()) {
      throw Error(Code::kInvalidArgument, std::to_string(keys.size()) + " keys for " +
                                              std::to_string(values.size()) + " values");
    }
    size_t bytes = 0;
    for (const std::string& value : values) {
      check_value(value);
      bytes += value.size();
    }
    if (bytes > kMaxStoreReplyBytes / 2) {
      throw Error(Code::kInvalidArgument, std::to_string(bytes) + " bytes in one call, " +
                                              std::to_string(kMaxStoreReplyBytes / 2) +
                                              " are allowed")
          .advice("split the call");
    }
    if (!keys.empty()) do_multi_set(keys, values, deadline);
  });
}

int64_t Store::num_keys() {
  return run("num_keys", {}, timeout(), [&](Deadline deadline) { return do_num_keys(deadline); });
}

std::vector<std::string> Store::list_keys() {
  return run("list_keys", {}, timeout(), [&](Deadline deadline) { return do_list_keys(deadline); });
}

void Store::queue_push(const std::string& key, const std::string& value) {
  run("queue_push to", {key}, timeout(), [&](Deadline deadline) {
    check_value(value);
    do_queue_push(key, value, deadline);
  });
}

std::string Store::queue_pop(const std::string& key, Millis timeout) {
  return run("queue_pop from", {key}, timeout,
             [&](Deadline deadline) { return do_queue_pop(key, deadline); });
}

std::optional<std::string> Store::queue_try_pop(const std::string& key) {
  return run("queue_try_pop from", {key}, timeout(),
             [&](Deadline deadline) { return do_queue_try_pop(key, deadline); });
}

int64_t Store::queue_len(const std::string& key) {
  return run("queue_len of", {key}, timeout(),
             [&](Deadline deadline) { return do_queue_len(key, deadline); });
}

void Store::do_queue_push(const std::string&, const std::string&, Deadline) { throw no_queues(); }
std::string Store::do_queue_pop(const std::string&, Deadline) { throw no_queues(); }
std::optional<std::string> Store::do_queue_try_pop(const std::string&, Deadline) {
  throw no_queues();
}
int64_t Store::do_queue_len(const std::string&, Deadline) { throw no_queues(); }

}  // namespace farspan::dist
