#include <farspan/c10d/net/shared_memory.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::net {
namespace {

Error no_memory(const char* what) {
  return Error(Code::kOverloaded,
               std::string("no shared memory: ") + what + ": " + std::strerror(errno))
      .advice("raise the limits on memory or descriptors (ulimit -n)");
}

constexpr int kSizeIsFixed = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

SharedMemory::SharedMemory(OwnedDescriptor descriptor, size_t bytes)
    : descriptor_(std::move(descriptor)) {
  void* const place =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (place == MAP_FAILED) throw no_memory("mmap");
  bytes_ = {static_cast<std::byte*>(place), bytes};
}

SharedMemory SharedMemory::create(size_t bytes, const std::string& name) {
  OwnedDescriptor descriptor(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (descriptor.get() < 0) throw no_memory("memfd_create");
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) throw no_memory("ftruncate");
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSizeIsFixed | F_SEAL_SEAL) != 0) {
    throw no_memory("F_ADD_SEALS");
  }
  return SharedMemory(std::move(descriptor), bytes);
}

SharedMemory SharedMemory::open(OwnedDescriptor descriptor, size_t bytes) {
  struct stat status = {};
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (fstat(descriptor.get(), &status) != 0 || seals < 0 ||
      status.st_size != static_cast<off_t>(bytes) || (seals & kSizeIsFixed) != kSizeIsFixed) {
    throw Error(Code::kCorrupt, "what came is not the shared memory that was announced");
  }
  return SharedMemory(std::move(descriptor), bytes);
}

bool SharedMemory::is_called(const std::string& name, const OwnedDescriptor& descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor.get());
  std::array<char, 256> target;  // the system's names are shorter
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  return length > 0 && std::string_view(target.data(), static_cast<size_t>(length)) ==
                           "/memfd:" + name + " (deleted)";
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace farspan::net
