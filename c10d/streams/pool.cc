#include <farspan/c10d/streams/pool.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_map>

#include <farspan/c10d/base/mutex.h>

namespace farspan {
namespace {

using c10::impl::VirtualGuardImpl;

constexpr int kMostLooks = 64;  // pools of CUDA have 32

class Pools {
 public:
  static Pools& all() {
    static auto* pools = new Pools;  // streams may be kept until the process ends
    return *pools;
  }

  c10::Stream keep(c10::Device device) {
    MutexLock lock(mutex_);
    const c10::Stream stream = least_kept(device);
    ++kept_[stream];
    return stream;
  }
  void let_go(const c10::Stream& stream) {
    MutexLock lock(mutex_);
    const auto found = kept_.find(stream);
    if (--found->second == 0) kept_.erase(found);
  }
  c10::Stream take(c10::Device device) {
    MutexLock lock(mutex_);
    return least_kept(device);
  }

 private:
  int times_kept(const c10::Stream& stream) const FARSPAN_REQUIRES(mutex_) {
    const auto found = kept_.find(stream);
    return found == kept_.end() ? 0 : found->second;
  }
  // Pools give one after another, and then the first one again.
  c10::Stream least_kept(c10::Device device) const FARSPAN_REQUIRES(mutex_) {
    const VirtualGuardImpl guard(device.type());
    c10::Stream best = guard.getStreamFromGlobalPool(device);
    for (int look = 0; look < kMostLooks && times_kept(best) > 0; ++look) {
      const c10::Stream next = guard.getStreamFromGlobalPool(device);
      if (times_kept(next) < times_kept(best)) best = next;
    }
    return best;
  }

  Mutex mutex_;
  std::unordered_map<c10::Stream, int> kept_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace

c10::Stream pool_stream(c10::Device device) { return Pools::all().take(device); }

KeptStream::KeptStream(c10::Device device) : stream_(Pools::all().keep(device)) {}
KeptStream::~KeptStream() { Pools::all().let_go(stream_); }

}  // namespace farspan
