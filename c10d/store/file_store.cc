#include <farspan/c10d/store/file_store.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/refusal.h>

namespace farspan::dist {
namespace {

// The names in the file. A user's key has a slash in front; these have none.
constexpr const char* kUsers = "refcount/";    // stores that have the file now
constexpr const char* kFinished = "cleanup/";  // stores that had it
std::string name_of(const std::string& key) { return "/" + key; }

constexpr Millis kFirstPause{1};
constexpr Millis kLongestPause{10};
constexpr std::chrono::seconds kLook{1};
constexpr std::chrono::seconds kFarewell{5};  // for the destructor

int64_t add_to(FileLog::Visit& visit, const std::string& name, int64_t delta) {
  const auto sum = visit.table().sum(name, delta);
  if (!sum) throw no_number(*visit.table().find(name));
  visit.put(name, std::to_string(*sum));
  return *sum;
}

bool has_all(const Table& table, const std::vector<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return table.find(name_of(key)); });
}

// For a look at the file, which must not fail only because another process has it just now.
Deadline for_a_look(Deadline deadline) {
  return deadline.remaining() > kLook ? deadline : Deadline::after(kLook);
}

void pause_for(Millis* pause, Deadline deadline) {
  std::this_thread::sleep_for(std::min<Clock::duration>(*pause, deadline.remaining()));
  *pause = std::min(*pause * 2, kLongestPause);
}

}  // namespace

// One of those that the file counts.
class FileStore::Member {
 public:
  Member(std::string path, int world_size, Deadline deadline)
      : log_(std::move(path)), world_size_(world_size) {
    if (log_.path().empty()) throw Error(Code::kInvalidArgument, "the path is empty");
    auto visit = log_.write(deadline);
    add_to(visit, kUsers, 1);
    visit.commit();
  }

  ~Member() {
    try {
      auto visit = log_.write_if_there(Deadline::after(kFarewell));
      if (!visit) return;  // somebody has tidied up
      const int64_t finished = add_to(*visit, kFinished, 1);
      const int64_t users = add_to(*visit, kUsers, -1);
      if (users == 0 && world_size_ >= 0 && finished >= world_size_) {
        visit->remove_file();
      } else {
        visit->commit();
      }
    } catch (const Error& error) {
      log(LogLevel::kWarning, "store", "left " + log_.path() + " behind: " + error.what());
    }
  }

  const std::string& path() const noexcept { return log_.path(); }

 private:
  FileLog log_;
  const int world_size_;
};

FileStore::FileStore(std::string path, int world_size, Millis timeout)
    : FileStore(
          [&] {
            const TimePoint start = Clock::now();
            try {
              return std::make_shared<Member>(path, world_size, Deadline::in(timeout));
            } catch (Error& error) {
              error.operation("open the store file://" + path).elapsed(Clock::now() - start);
              throw;
            }
          }(),
          timeout) {}

FileStore::FileStore(std::shared_ptr<Member> member, Millis timeout)
    : Store(timeout), member_(std::move(member)), path_(member_->path()), log_(path_) {}

FileStore::~FileStore() = default;

std::shared_ptr<Store> FileStore::do_clone() {
  return std::shared_ptr<Store>(new FileStore(member_, timeout()));
}

void FileStore::do_set(const std::string& key, const std::string& value, Deadline deadline) {
  do_multi_set({key}, {value}, deadline);
}

std::string FileStore::do_get(const std::string& key, Deadline deadline) {
  return std::move(do_multi_get({key}, deadline).front());
}

int64_t FileStore::do_add(const std::string& key, int64_t delta, Deadline deadline) {
  MutexLock lock(mutex_);
  auto visit = log_.write(deadline);
  const int64_t sum = add_to(visit, name_of(key), delta);
  visit.commit();
  return sum;
}

std::optional<std::string> FileStore::do_compare_set(const std::string& key,
                                                     const std::string& expected,
                                                     const std::string& desired,
                                                     Deadline deadline) {
  const std::string name = name_of(key);
  const auto value_in = [&](const Table& table) {
    const std::string* value = table.find(name);
    return value ? std::optional(*value) : std::nullopt;
  };
  MutexLock lock(mutex_);
  // Where it differs nothing is written, and the lock that keeps others out is not needed.
  if (const Table& table = log_.read(deadline); !table.matches(name, expected)) {
    return value_in(table);
  }
  auto visit = log_.write(deadline);
  if (!visit.table().matches(name, expected)) return value_in(visit.table());
  visit.put(name, desired);
  visit.commit();
  return desired;
}

bool FileStore::do_check(const std::vector<std::string>& keys, Deadline deadline) {
  MutexLock lock(mutex_);
  return has_all(log_.read(deadline), keys);
}

void FileStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  for (Millis pause = kFirstPause;; pause_for(&pause, deadline)) {
    const bool last = deadline.expired();
    if (do_check(keys, for_a_look(deadline))) return;
    if (last) throw nobody_has_set();
  }
}

bool FileStore::do_delete_key(const std::string& key, Deadline deadline) {
  MutexLock lock(mutex_);
  auto visit = log_.write(deadline);
  if (!visit.table().find(name_of(key))) return false;
  visit.erase(name_of(key));
  visit.commit();
  return true;
}

void FileStore::do_append(const std::string& key, const std::string& value, Deadline deadline) {
  MutexLock lock(mutex_);
  auto visit = log_.write(deadline);
  const std::string* old = visit.table().find(name_of(key));
  if (old && old->size() + value.size() > kMaxStoreReplyBytes) throw too_long();
  visit.put(name_of(key), old ? *old + value : value);
  visit.commit();
}

std::vector<std::string> FileStore::do_multi_get(const std::vector<std::string>& keys,
                                                 Deadline deadline) {
  for (Millis pause = kFirstPause;; pause_for(&pause, deadline)) {
    const bool last = deadline.expired();
    MutexLock lock(mutex_);
    const Table& table = log_.read(for_a_look(deadline));
    if (has_all(table, keys)) {
      std::vector<std::string> values;
      for (const std::string& key : keys) values.push_back(*table.find(name_of(key)));
      return values;
    }
    if (last) throw nobody_has_set();
  }
}

void FileStore::do_multi_set(const std::vector<std::string>& keys,
                             const std::vector<std::string>& values, Deadline deadline) {
  MutexLock lock(mutex_);
  auto visit = log_.write(deadline);
  for (size_t i = 0; i < keys.size(); ++i) visit.put(name_of(keys[i]), values[i]);
  visit.commit();
}

int64_t FileStore::do_num_keys(Deadline deadline) {
  return static_cast<int64_t>(do_list_keys(deadline).size());
}

std::vector<std::string> FileStore::do_list_keys(Deadline deadline) {
  MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [name, value] : log_.read(deadline).values()) {
    if (name.starts_with('/')) keys.push_back(name.substr(1));
  }
  return keys;
}

}  // namespace farspan::dist
