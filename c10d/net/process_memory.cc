#include <farspan/c10d/net/process_memory.h>

#include <sys/uio.h>

#include <cerrno>

namespace farspan::net {

int read_process_memory(pid_t process, uint64_t address, void* to, size_t bytes) noexcept {
  auto* place = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec here{place, bytes};
    const iovec there{reinterpret_cast<void*>(address), bytes};  // NOLINT: of another process
    const ssize_t read = process_vm_readv(process, &here, 1, &there, 1, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return read < 0 ? errno : EFAULT;
    place += read;
    address += static_cast<uint64_t>(read);
    bytes -= static_cast<size_t>(read);
  }
  return 0;
}

}  // namespace farspan::net
