#include <farspan/c10d/store/prefix_store.h>

#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : Store(store ? store->timeout() : kDefaultStoreTimeout),
      prefix_(std::move(prefix)),
      store_(std::move(store)) {
  if (!store_) {
    throw Error(Code::kInvalidArgument, "a PrefixStore needs a store").operation("PrefixStore");
  }
}

std::string PrefixStore::full(const std::string& key) const {
  std::string name = prefix_ + "/" + key;
  if (name.size() > kMaxStoreKeyBytes) {
    throw Error(Code::kInvalidArgument, "with the prefix the key has " +
                                            std::to_string(name.size()) + " bytes, " +
                                            std::to_string(kMaxStoreKeyBytes) + " are allowed");
  }
  return name;
}

std::vector<std::string> PrefixStore::full(const std::vector<std::string>& keys) const {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) names.push_back(full(key));
  return names;
}

std::shared_ptr<Store> PrefixStore::do_clone() {
  return std::make_shared<PrefixStore>(prefix_, store_->do_clone());
}

void PrefixStore::do_set(const std::string& key, const std::string& value, Deadline deadline) {
  store_->do_set(full(key), value, deadline);
}

std::string PrefixStore::do_get(const std::string& key, Deadline deadline) {
  return store_->do_get(full(key), deadline);
}

int64_t PrefixStore::do_add(const std::string& key, int64_t delta, Deadline deadline) {
  return store_->do_add(full(key), delta, deadline);
}

std::optional<std::string> PrefixStore::do_compare_set(const std::string& key,
                                                       const std::string& expected,
                                                       const std::string& desired,
                                                       Deadline deadline) {
  return store_->do_compare_set(full(key), expected, desired, deadline);
}

bool PrefixStore::do_check(const std::vector<std::string>& keys, Deadline deadline) {
  return store_->do_check(full(keys), deadline);
}

void PrefixStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  store_->do_wait(full(keys), deadline);
}

bool PrefixStore::do_delete_key(const std::string& key, Deadline deadline) {
  return store_->do_delete_key(full(key), deadline);
}

void PrefixStore::do_append(const std::string& key, const std::string& value, Deadline deadline) {
  store_->do_append(full(key), value, deadline);
}

std::vector<std::string> PrefixStore::do_multi_get(const std::vector<std::string>& keys,
                                                   Deadline deadline) {
  return store_->do_multi_get(full(keys), deadline);
}

void PrefixStore::do_multi_set(const std::vector<std::string>& keys,
                               const std::vector<std::string>& values, Deadline deadline) {
  store_->do_multi_set(full(keys), values, deadline);
}

int64_t PrefixStore::do_num_keys(Deadline deadline) {
  return static_cast<int64_t>(do_list_keys(deadline).size());
}

std::vector<std::string> PrefixStore::do_list_keys(Deadline deadline) {
  std::vector<std::string> keys;
  for (const std::string& name : store_->do_list_keys(deadline)) {
    if (name.starts_with(prefix_ + "/")) keys.push_back(name.substr(prefix_.size() + 1));
  }
  return keys;
}

void PrefixStore::do_queue_push(const std::string& key, const std::string& value,
                                Deadline deadline) {
  store_->do_queue_push(full(key), value, deadline);
}

std::string PrefixStore::do_queue_pop(const std::string& key, Deadline deadline) {
  return store_->do_queue_pop(full(key), deadline);
}

std::optional<std::string> PrefixStore::do_queue_try_pop(const std::string& key,
                                                         Deadline deadline) {
  return store_->do_queue_try_pop(full(key), deadline);
}

int64_t PrefixStore::do_queue_len(const std::string& key, Deadline deadline) {
  return store_->do_queue_len(full(key), deadline);
}

}  // namespace farspan::dist
