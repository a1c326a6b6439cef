#include "console/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace console {
namespace {

using farspan::net::OwnedDescriptor;
using std::filesystem::path;

[[noreturn]] void fail(const path& file, int error) {
  throw farspan::Error(farspan::Code::kUnavailable, std::strerror(error))
      .operation("write '" + file.string() + "'")
      .advice("name a file in a folder that you may write to");
}

// To the disk; returns the error number, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(fd) == 0 || errno == EINVAL ? 0 : errno;  // EINVAL: nothing that has a disk
}

// A neighbour that takes the place of the file. One that was left by a process that was killed
// before it could is written over by the next.
path part_of(const path& file) { return file.string() + ".part"; }

// Returns the error number, or 0.
int put_in_place(const path& part, const path& file) {
  if (rename(part.c_str(), file.c_str()) == 0) return 0;
  const int error = errno;
  unlink(part.c_str());
  return error;
}

// Gives the nameless file a name that another may have; returns the error number, or 0.
int name_it(int fd, const path& file) {
  const std::string open_file = "/proc/self/fd/" + std::to_string(fd);
  const auto name = [&](const path& wanted) {
    return linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, wanted.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (name(file)) return 0;
  if (errno != EEXIST) return errno;
  const path part = part_of(file);
  unlink(part.c_str());
  return name(part) ? put_in_place(part, file) : errno;
}

void write_and_rename(const path& file, std::string_view text) {
  const path part = part_of(file);
  int error = 0;
  {
    const OwnedDescriptor out(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    error = out.get() < 0 ? errno : write_all(out.get(), text);
  }
  if (error == 0) error = put_in_place(part, file);
  if (error == 0) return;
  unlink(part.c_str());
  fail(file, error);
}

}  // namespace

// The folders that are missing will be made in the last one that is there.
std::string why_not_written(const path& file) {
  std::error_code none;
  const auto refuse = [&](const std::string& why) {
    return "'" + file.string() + "' cannot be written: " + why;
  };
  if (file.empty() || !file.has_filename()) return refuse("it names no file");
  if (std::filesystem::is_directory(file, none)) return refuse("it is a folder");
  path folder = std::filesystem::absolute(file, none).parent_path();
  while (folder.has_relative_path() && !std::filesystem::exists(folder, none)) {
    folder = folder.parent_path();
  }
  if (!std::filesystem::is_directory(folder, none)) {
    return refuse("'" + folder.string() + "' is no folder");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return refuse("'" + folder.string() + "': " + std::strerror(errno));
  }
  return {};
}

void write_whole_file(const path& file, std::string_view text) {
  const path folder = file.has_parent_path() ? file.parent_path() : path(".");
  std::error_code none;  // what is wrong with the folder, open() says
  std::filesystem::create_directories(folder, none);
  const OwnedDescriptor out(open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
  if (out.get() < 0) return write_and_rename(file, text);
  int error = write_all(out.get(), text);
  if (error == 0) error = name_it(out.get(), file);
  if (error == ENOENT) return write_and_rename(file, text);  // there is no /proc
  if (error != 0) fail(file, error);
}

}  // namespace console
