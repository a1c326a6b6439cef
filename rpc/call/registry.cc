#include <farspan/rpc/call/registry.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/base/fnv1a.h>

namespace farspan {

uint64_t function_id(std::string_view name, std::string_view signature) noexcept {
  // With a byte between them that is in neither.
  return Fnv1a().add_text(name).add('\n').add_text(signature).value();
}

size_t Registry::KeyHash::operator()(const FunctionKey& key) const noexcept {
  return key.type.hash_code() ^ (key.bits[0] * 0x9e3779b97f4a7c15) ^ key.bits[1];
}

Registry::Registry() = default;
Registry::~Registry() = default;

Registry& Registry::global() {
  // Never destroyed: threads may still serve calls while static objects go.
  static Registry& registry = *new Registry;
  return registry;
}

void Registry::add(const FunctionKey& key, std::string name, std::string signature,
                   std::type_index class_type, Function::Invoke invoke) {
  MutexLock lock(mutex_);
  const auto same_key = by_key_.find(key);
  const auto same_name = by_name_.find(name);
  if (same_name != by_name_.end()) {
    // One function whose registration stands in a header is registered by every file.
    if (same_key != by_key_.end() && same_key->second == same_name->second) return;
    problems_.push_back("'" + name + "' names two functions, " + same_name->second->signature +
                        " and " + signature);
    return;
  }
  const uint64_t id = function_id(name, signature);
  for (const Function& other : functions_) {
    if (other.id == id) {
      problems_.push_back("'" + name + "' and '" + other.name + "' have the same id by chance");
      return;
    }
  }
  if (same_key != by_key_.end()) {
    notes_.push_back("'" + name + "' and '" + same_key->second->name +
                     "' are one function: it was registered twice, or the linker has folded two "
                     "with the same code; calls through its pointer are sent under the latter");
  }
  functions_.push_back(Function{name, std::move(signature), id, class_type, invoke});
  const Function* function = &functions_.back();
  by_name_.emplace(std::move(name), function);
  by_key_.emplace(key, function);
  by_id_.store(nullptr, std::memory_order_release);
}

const Registry::ById* Registry::index() const {
  if (const ById* index = by_id_.load(std::memory_order_acquire)) return index;
  MutexLock lock(mutex_);
  auto index = std::make_unique<ById>();
  for (const Function& function : functions_) index->emplace(function.id, &function);
  indexes_.push_back(std::move(index));
  by_id_.store(indexes_.back().get(), std::memory_order_release);
  return indexes_.back().get();
}

const Function* Registry::find(uint64_t id) const {
  const ById* by_id = index();
  const auto found = by_id->find(id);
  return found == by_id->end() ? nullptr : found->second;
}

const Function* Registry::find(std::string_view name) const {
  MutexLock lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const Function* Registry::find(const FunctionKey& key) const {
  MutexLock lock(mutex_);
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

std::vector<const Function*> Registry::all() const {
  MutexLock lock(mutex_);
  std::vector<const Function*> functions;
  for (const auto& [name, function] : by_name_) functions.push_back(function);
  return functions;
}

void Registry::check() const {
  MutexLock lock(mutex_);
  if (problems_.empty()) return;
  std::string all;
  for (const std::string& problem : problems_) all += (all.empty() ? "" : "; ") + problem;
  throw Error(Code::kAlreadyExists, all)
      .operation("register functions")
      .advice("give one of them another name with FARSPAN_REGISTER_AS(\"name\", function)");
}

std::vector<std::string> Registry::notes() const {
  MutexLock lock(mutex_);
  return notes_;
}

namespace detail {
void throw_not_registered(const std::type_info& type, const std::type_info* class_type) {
  if (class_type) {
    const std::string name = demangle(class_type->name());
    throw Error(Code::kNotRegistered,
                "this method of " + name + " (" + demangle(type.name()) + ") is not registered")
        .advice("add FARSPAN_REGISTER_METHODS(" + name +
                ", method) beside the class, in the "
                "program of every worker");
  }
  throw Error(Code::kNotRegistered,
              "this function (" + demangle(type.name()) + ") is not registered")
      .advice("add FARSPAN_REGISTER(function) beside it, in the program of every worker");
}
}  // namespace detail

}  // namespace farspan
