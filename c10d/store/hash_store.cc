#include <farspan/c10d/store/hash_store.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/store/refusal.h>
#include <farspan/c10d/store/table.h>

namespace farspan::dist {

struct HashStore::Shared {
  Mutex mutex;
  CondVar changed;  // some key or queue came into being
  Table table FARSPAN_GUARDED_BY(mutex);

  // Waits until all keys exist.
  void wait(const std::vector<std::string>& keys, Deadline deadline) FARSPAN_REQUIRES(mutex) {
    for (const std::string& key : keys) {
      while (!table.exists(key)) {
        if (!changed.wait_until(mutex, deadline) && !table.exists(key)) throw nobody_has_set();
      }
    }
  }
};

HashStore::HashStore(Millis timeout) : HashStore(std::make_shared<Shared>(), timeout) {}

HashStore::HashStore(std::shared_ptr<Shared> shared, Millis timeout)
    : Store(timeout), shared_(std::move(shared)) {}

std::shared_ptr<Store> HashStore::do_clone() {
  return std::shared_ptr<Store>(new HashStore(shared_, timeout()));
}

void HashStore::do_set(const std::string& key, const std::string& value, Deadline) {
  MutexLock lock(shared_->mutex);
  shared_->table.set(key, value);
  shared_->changed.notify_all();
}

std::string HashStore::do_get(const std::string& key, Deadline deadline) {
  return std::move(do_multi_get({key}, deadline).front());
}

int64_t HashStore::do_add(const std::string& key, int64_t delta, Deadline) {
  MutexLock lock(shared_->mutex);
  const auto sum = shared_->table.add(key, delta);
  if (!sum) throw no_number(*shared_->table.find(key));
  shared_->changed.notify_all();
  return *sum;
}

std::optional<std::string> HashStore::do_compare_set(const std::string& key,
                                                     const std::string& expected,
                                                     const std::string& desired, Deadline) {
  MutexLock lock(shared_->mutex);
  if (!shared_->table.matches(key, expected)) {
    const std::string* value = shared_->table.find(key);
    return value ? std::optional(*value) : std::nullopt;
  }
  shared_->table.set(key, desired);
  shared_->changed.notify_all();
  return desired;
}

bool HashStore::do_check(const std::vector<std::string>& keys, Deadline) {
  MutexLock lock(shared_->mutex);
  for (const std::string& key : keys) {
    if (!shared_->table.exists(key)) return false;
  }
  return true;
}

void HashStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  MutexLock lock(shared_->mutex);
  shared_->wait(keys, deadline);
}

bool HashStore::do_delete_key(const std::string& key, Deadline) {
  MutexLock lock(shared_->mutex);
  return shared_->table.erase(key);
}

void HashStore::do_append(const std::string& key, const std::string& value, Deadline) {
  MutexLock lock(shared_->mutex);
  if (!shared_->table.append(key, value, kMaxStoreReplyBytes)) throw too_long();
  shared_->changed.notify_all();
}

std::vector<std::string> HashStore::do_multi_get(const std::vector<std::string>& keys,
                                                 Deadline deadline) {
  MutexLock lock(shared_->mutex);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    // A queue of that name ends a wait(), but has no value to get.
    const std::string* value = nullptr;
    while (!(value = shared_->table.find(key))) {
      if (!shared_->changed.wait_until(shared_->mutex, deadline) && !shared_->table.find(key)) {
        throw nobody_has_set();
      }
    }
    values.push_back(*value);
  }
  return values;
}

void HashStore::do_multi_set(const std::vector<std::string>& keys,
                             const std::vector<std::string>& values, Deadline) {
  MutexLock lock(shared_->mutex);
  for (size_t i = 0; i < keys.size(); ++i) shared_->table.set(keys[i], values[i]);
  shared_->changed.notify_all();
}

int64_t HashStore::do_num_keys(Deadline) {
  MutexLock lock(shared_->mutex);
  return static_cast<int64_t>(shared_->table.size());
}

std::vector<std::string> HashStore::do_list_keys(Deadline) {
  MutexLock lock(shared_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, value] : shared_->table.values()) keys.push_back(key);
  return keys;
}

void HashStore::do_queue_push(const std::string& key, const std::string& value, Deadline) {
  MutexLock lock(shared_->mutex);
  shared_->table.push(key, value);
  shared_->changed.notify_all();
}

std::string HashStore::do_queue_pop(const std::string& key, Deadline deadline) {
  MutexLock lock(shared_->mutex);
  while (true) {
    if (auto value = shared_->table.pop(key)) return std::move(*value);
    if (!shared_->changed.wait_until(shared_->mutex, deadline) &&
        shared_->table.queue_size(key) == 0) {
      throw nothing_was_pushed();
    }
  }
}

std::optional<std::string> HashStore::do_queue_try_pop(const std::string& key, Deadline) {
  MutexLock lock(shared_->mutex);
  return shared_->table.pop(key);
}

int64_t HashStore::do_queue_len(const std::string& key, Deadline) {
  MutexLock lock(shared_->mutex);
  return static_cast<int64_t>(shared_->table.queue_size(key));
}

}  // namespace farspan::dist
