#include <farspan/c10d/store/table.h>

#include <charconv>
#include <system_error>
#include <utility>

namespace farspan::dist {

const std::string* Table::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

bool Table::exists(const std::string& key) const {
  return values_.count(key) > 0 || queues_.count(key) > 0;
}

void Table::set(const std::string& key, std::string value) {
  values_.insert_or_assign(key, std::move(value));
}

bool Table::erase(const std::string& key) { return values_.erase(key) > 0; }

void Table::clear() {
  values_.clear();
  queues_.clear();
}

std::optional<int64_t> Table::sum(const std::string& key, int64_t delta) const {
  int64_t number = 0;
  if (const std::string* text = find(key)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, delta, &sum)) return std::nullopt;
  return sum;
}

std::optional<int64_t> Table::add(const std::string& key, int64_t delta) {
  const auto result = sum(key, delta);
  if (result) set(key, std::to_string(*result));
  return result;
}

bool Table::matches(const std::string& key, std::string_view expected) const {
  const std::string* value = find(key);
  return value ? *value == expected : expected.empty();
}

bool Table::append(const std::string& key, std::string_view value, size_t limit) {
  const std::string* old = find(key);
  if ((old ? old->size() : 0) + value.size() > limit) return false;
  values_[key] += value;
  return true;
}

void Table::push(const std::string& key, std::string value) {
  queues_[key].push_back(std::move(value));
}

std::optional<std::string> Table::pop(const std::string& key) {
  const auto it = queues_.find(key);
  if (it == queues_.end()) return std::nullopt;
  std::string value = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) queues_.erase(it);
  return value;
}

size_t Table::queue_size(const std::string& key) const {
  const auto it = queues_.find(key);
  return it == queues_.end() ? 0 : it->second.size();
}

}  // namespace farspan::dist
