// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FileLog: the file behind a FileStore: records at the end of a file, under flock(2).
// Source: the format of PyTorch's FileStore (README.md, "The file").
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/store/table.h>

namespace farspan::dist {

// What it has read so far is kept in a Table; every visit reads only what came since.
//
// Threading: one thread at a time. Other processes, and other logs here, may use the file
// meanwhile.
class FileLog {
 public:
  explicit FileLog(std::string path);

  const std::string& path() const noexcept { return path_; }

  // The file, locked and read up to its end. Errors name the path and the system's reason.
  //
  // Lifetime: holds the lock until it goes; belongs to a FileLog, which must outlive it.
  class Visit {
   public:
    Visit(Visit&& other) noexcept
        : log_(std::exchange(other.log_, nullptr)), pending_(std::move(other.pending_)) {}
    ~Visit();

    // All that others have written. Keys are those of the file: "/k" for the user's "k".
    const Table& table() const noexcept { return log_->table_; }

    // Records that will be written together. Visible to others after commit() only.
    void put(const std::string& key, const std::string& value);
    void erase(const std::string& key);
    // Writes all of them, or none.
    //   throws  Error kOverloaded (no room on the disk), kUnavailable
    void commit();

    // Removes the file. Those who have it open notice and begin anew.
    void remove_file();

   private:
    friend class FileLog;
    explicit Visit(FileLog& log) : log_(&log) {}
    FileLog* log_;
    std::string pending_;
  };

  // Alone: nobody else reads or writes meanwhile. Makes the file when it is missing.
  //   throws  Error kTimeout (somebody holds the lock), kUnavailable, kOverloaded
  Visit write(Deadline deadline);
  // The same, but nothing when there is no file.
  std::optional<Visit> write_if_there(Deadline deadline);
  // Reads what is new, together with other readers. A missing file is an empty one.
  const Table& read(Deadline deadline);

 private:
  bool lock(int open_flags, int lock_kind, Deadline deadline);
  void unlock() noexcept;
  bool is_current(struct stat* at_path) const;
  void forget();
  void catch_up(const struct stat& now);
  size_t take_records(std::string_view bytes);

  const std::string path_;
  Table table_;
  uint64_t position_ = 0;      // up to here the file is in table_; always between two records
  net::OwnedDescriptor file_;  // stays open, so that its inode is not given to another file
};

}  // namespace farspan::dist
