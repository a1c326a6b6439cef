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

// The error number, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// Gives the nameless file a name that another may have; returns the error number, or 0.
int name_it(int fd, const path& file) {
  constexpr int kTries = 10;  // others may be writing the same file
  const std::string open_file = "/proc/self/fd/" + std::to_string(fd);
  for (int i = 0; i < kTries; ++i) {
    if (linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, file.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      return 0;
    }
    if (errno != EEXIST || (unlink(file.c_str()) != 0 && errno != ENOENT)) return errno;
  }
  return EEXIST;
}

void write_and_rename(const path& file, std::string_view text) {
  const path part = file.string() + ".part" + std::to_string(getpid());
  int error = 0;
  {
    const OwnedDescriptor out(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    error = out.get() < 0 ? errno : write_all(out.get(), text);
  }
  if (error == 0 && rename(part.c_str(), file.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(part.c_str());
  fail(file, error);
}

}  // namespace

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
