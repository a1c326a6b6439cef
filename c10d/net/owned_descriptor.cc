#include <farspan/c10d/net/owned_descriptor.h>

#include <cerrno>

namespace farspan::net {

void OwnedDescriptor::reset() noexcept {
  if (fd_ < 0) return;
  const int saved = errno;
  close(release());
  errno = saved;
}

}  // namespace farspan::net
