#include <farspan/rpc/device/local_exports.h>

namespace farspan {

LocalExports& LocalExports::all() {
  static LocalExports* exports = new LocalExports;  // never destroyed: threads may outlive main()
  return *exports;
}

uint64_t LocalExports::add(LocalExport one) {
  MutexLock lock(mutex_);
  all_.emplace(++last_id_, one);
  return last_id_;
}

void LocalExports::remove(uint64_t id) noexcept {
  MutexLock lock(mutex_);
  all_.erase(id);
}

std::optional<LocalExport> LocalExports::find(uint64_t id) const {
  MutexLock lock(mutex_);
  const auto found = all_.find(id);
  if (found == all_.end()) return std::nullopt;
  return found->second;
}

}  // namespace farspan
