// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Table: what the keys, values and queues of a store mean, in memory and for one thread. Every
// store is this, with a way for others to reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace farspan::dist {

// Threading: one thread at a time.
class Table {
 public:
  // Null when missing; valid until the next change.
  const std::string* find(const std::string& key) const;
  // Whether there is a key of this name, or a queue that is not empty.
  bool exists(const std::string& key) const;

  void set(const std::string& key, std::string value);
  bool erase(const std::string& key);
  void clear();

  // What add() would store; nothing when the value is no number or the sum does not fit.
  std::optional<int64_t> sum(const std::string& key, int64_t delta) const;
  std::optional<int64_t> add(const std::string& key, int64_t delta);

  // Whether compare_set() would store.
  bool matches(const std::string& key, std::string_view expected) const;

  // False, and nothing is done, when the value would grow past `limit` bytes.
  bool append(const std::string& key, std::string_view value, size_t limit);

  size_t size() const { return values_.size(); }
  const std::unordered_map<std::string, std::string>& values() const { return values_; }

  void push(const std::string& key, std::string value);
  std::optional<std::string> pop(const std::string& key);
  size_t queue_size(const std::string& key) const;

 private:
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;  // none is empty
};

}  // namespace farspan::dist
