#include <farspan/c10d/base/device_order.h>

#include <atomic>

namespace farspan {
namespace {
std::atomic<DeviceOrder*> the_one{nullptr};
}

DeviceOrder* DeviceOrder::installed() noexcept { return the_one.load(std::memory_order_acquire); }

void DeviceOrder::install(DeviceOrder& order) noexcept {
  the_one.store(&order, std::memory_order_release);
}

}  // namespace farspan
