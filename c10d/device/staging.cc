#include <farspan/c10d/device/staging.h>

#include <algorithm>

#include <farspan/c10d/base/error.h>

namespace farspan::device {
namespace {

// A few sizes only, so that blocks are used again: powers of two, from this one.
constexpr size_t kLeast = size_t{1} << 20;

size_t rounded(size_t bytes) {
  size_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

Staging::~Staging() {
  MutexLock lock(mutex_);
  for (const auto& [device, of] : all_) {
    for (const Block& block : of.at_rest) devices_.release(block.memory);
  }
}

Staging::Block Staging::take(int device, size_t bytes) {
  if (bytes > most_) return {};
  const size_t size = std::min(rounded(bytes), most_);
  std::vector<Block> released;
  bool has_room = false;
  {
    MutexLock lock(mutex_);
    Of& of = all_[device];
    const auto same = std::find_if(of.at_rest.rbegin(), of.at_rest.rend(),
                                   [&](const Block& block) { return block.bytes == size; });
    if (same != of.at_rest.rend()) {
      const Block block = *same;
      of.at_rest.erase(std::next(same).base());
      return block;
    }
    while (of.bytes > most_ - size && !of.at_rest.empty()) {  // those of other sizes
      of.bytes -= of.at_rest.front().bytes;
      released.push_back(of.at_rest.front());
      of.at_rest.erase(of.at_rest.begin());
    }
    has_room = of.bytes <= most_ - size;
    if (has_room) of.bytes += size;
  }
  for (const Block& block : released) devices_.release(block.memory);
  if (!has_room) return {};
  try {
    return {device, static_cast<std::byte*>(devices_.allocate(device, size)), size};
  } catch (const Error& error) {
    MutexLock lock(mutex_);
    all_[device].bytes -= size;
    if (error.code() == Code::kOverloaded) return {};
    throw;
  }
}

void Staging::give_back(const Block& block) noexcept {
  MutexLock lock(mutex_);
  all_[block.device].at_rest.push_back(block);
}

}  // namespace farspan::device
