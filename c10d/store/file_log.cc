#include <farspan/c10d/store/file_log.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {
namespace {

constexpr const char* kDeleted = "-";  // before the key of a record that deletes
constexpr std::chrono::microseconds kFirstPause{200};
constexpr std::chrono::microseconds kLongestPause{10'000};

Error file_error(const std::string& path, const char* doing, int code) {
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  Error error(full || code == EMFILE || code == ENFILE ? Code::kOverloaded : Code::kUnavailable,
              std::string("cannot ") + doing + " " + path + ": " + std::strerror(code));
  if (full) {
    error.advice("make room on that disk, or give the store another path");
  } else {
    error.advice("the path must be a file that every worker may read and write");
  }
  return error;
}

void append_record(std::string& out, const std::string& key, const std::string& value) {
  for (const std::string* text : {&key, &value}) {
    const auto size = static_cast<uint32_t>(text->size());
    out.append(reinterpret_cast<const char*>(&size), sizeof size);
    out.append(*text);
  }
}

// Takes a length and as many bytes off the front; false when they are not all there.
bool take_text(std::string_view& bytes, std::string_view* text) {
  uint32_t size = 0;
  if (bytes.size() < sizeof size) return false;
  std::memcpy(&size, bytes.data(), sizeof size);
  if (bytes.size() - sizeof size < size) return false;
  *text = bytes.substr(sizeof size, size);
  bytes.remove_prefix(sizeof size + size);
  return true;
}

// Every store begins by counting itself. False: this is somebody's file that has nothing to do with
// stores.
bool may_begin_store(std::string_view bytes) {
  static constexpr std::string_view kBegin("\x09\0\0\0refcount/", 13);
  const size_t size = std::min(bytes.size(), kBegin.size());
  return bytes.substr(0, size) == kBegin.substr(0, size);
}

}  // namespace

FileLog::FileLog(std::string path) : path_(std::move(path)) {}

// Whether the open file is the one at the path, of which it then tells.
bool FileLog::is_current(struct stat* at_path) const {
  struct stat open_file {};
  return file_ && stat(path_.c_str(), at_path) == 0 && fstat(file_.get(), &open_file) == 0 &&
         at_path->st_dev == open_file.st_dev && at_path->st_ino == open_file.st_ino;
}

// Opens the file where needed, locks it, and reads what is new. False when there is none.
bool FileLog::lock(int open_flags, int lock_kind, Deadline deadline) {
  auto pause = kFirstPause;
  while (true) {
    if (!file_) {
      file_ = net::OwnedDescriptor(open(path_.c_str(), open_flags | O_CLOEXEC, 0666));
      if (!file_ && errno == EINTR) continue;
      if (!file_ && errno == ENOENT && (open_flags & O_CREAT) == 0) return false;
      if (!file_) throw file_error(path_, "open", errno);
    }
    while (flock(file_.get(), lock_kind | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) throw file_error(path_, "lock", errno);
      if (deadline.expired()) {
        throw Error(Code::kTimeout, "somebody else holds the lock on " + path_)
            .advice("end the process that does, see `lsof`");
      }
      // flock(2) itself cannot be given a deadline.
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline.remaining()));
      pause = std::min(pause * 2, kLongestPause);
    }
    struct stat now {};
    if (is_current(&now)) {
      try {
        catch_up(now);
      } catch (...) {
        unlock();
        throw;
      }
      return true;
    }
    // The last user of an earlier store removed the file before the lock was had.
    forget();
    if (deadline.expired()) {
      throw Error(Code::kTimeout, path_ + " keeps being removed")
          .advice("give every run a path of its own");
    }
  }
}

void FileLog::unlock() noexcept {
  if (file_) flock(file_.get(), LOCK_UN);
}

FileLog::Visit FileLog::write(Deadline deadline) {
  lock(O_RDWR | O_CREAT, LOCK_EX, deadline);
  return Visit(*this);
}

std::optional<FileLog::Visit> FileLog::write_if_there(Deadline deadline) {
  if (!lock(O_RDWR, LOCK_EX, deadline)) return std::nullopt;
  return Visit(*this);
}

const Table& FileLog::read(Deadline deadline) {
  struct stat now {};
  if (is_current(&now) && static_cast<uint64_t>(now.st_size) == position_) return table_;
  if (lock(O_RDWR, LOCK_SH, deadline)) {
    unlock();
  } else {
    forget();
  }
  return table_;
}

void FileLog::forget() {
  table_.clear();
  position_ = 0;
  file_.reset();
}

void FileLog::catch_up(const struct stat& now) {
  const auto end = static_cast<uint64_t>(now.st_size);
  if (end < position_) {  // somebody emptied it
    table_.clear();
    position_ = 0;
  }
  std::string bytes;
  while (position_ + bytes.size() < end) {
    const size_t have = bytes.size();
    bytes.resize(have + std::min<uint64_t>(end - position_ - have, size_t{1} << 20));
    const ssize_t got = pread(file_.get(), bytes.data() + have, bytes.size() - have,
                              static_cast<off_t>(position_ + have));
    const int failure = errno;
    bytes.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && failure == EINTR) continue;
    if (got < 0) throw file_error(path_, "read", failure);
    if (got == 0) break;
    if (position_ == 0 && !may_begin_store(bytes)) {
      // What looks like the rest of a dead writer's record would be cut off.
      throw Error(Code::kInvalidArgument, path_ + " is no store's file, and is left as it is")
          .advice("give a path where there is no file yet");
    }
    const size_t used = take_records(bytes);
    position_ += used;
    bytes.erase(0, used);
  }
}

// Returns how many bytes the whole records had. What follows is the start of one whose writer died.
size_t FileLog::take_records(std::string_view bytes) {
  const size_t all = bytes.size();
  while (true) {
    std::string_view rest = bytes, key, value;
    if (!take_text(rest, &key) || !take_text(rest, &value)) return all - bytes.size();
    if (key.starts_with(kDeleted)) {
      table_.erase(std::string(key.substr(1)));
    } else {
      table_.set(std::string(key), std::string(value));
    }
    bytes = rest;
  }
}

FileLog::Visit::~Visit() {
  if (log_) log_->unlock();
}

void FileLog::Visit::put(const std::string& key, const std::string& value) {
  append_record(pending_, key, value);
}

void FileLog::Visit::erase(const std::string& key) { append_record(pending_, kDeleted + key, ""); }

void FileLog::Visit::commit() {
  const int fd = log_->file_.get();
  const std::string& path = log_->path_;
  const auto start = static_cast<off_t>(log_->position_);
  // Cuts off what a writer left that died; no other can be writing, since the lock is ours.
  struct stat now {};
  if (fstat(fd, &now) != 0) throw file_error(path, "look at", errno);
  if (now.st_size > start && ftruncate(fd, start) != 0) throw file_error(path, "repair", errno);
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t wrote = pwrite(fd, pending_.data() + done, pending_.size() - done,
                                 start + static_cast<off_t>(done));
    if (wrote >= 0) {
      done += static_cast<size_t>(wrote);
    } else if (errno != EINTR) {
      const Error error = file_error(path, "write to", errno);
      if (done > 0 && ftruncate(fd, start) != 0) {
        // Readers skip the part all the same, and the next writer tries again to cut it off.
      }
      throw error;
    }
  }
  log_->position_ += log_->take_records(pending_);
  pending_.clear();
}

void FileLog::Visit::remove_file() {
  if (unlink(log_->path_.c_str()) != 0 && errno != ENOENT) {
    throw file_error(log_->path_, "remove", errno);
  }
  log_->forget();  // closing it gives up the lock
}

}  // namespace farspan::dist
