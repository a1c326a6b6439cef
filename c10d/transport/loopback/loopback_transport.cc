#include <farspan/c10d/transport/loopback/loopback_transport.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/level.h>

namespace farspan::transport {
namespace {

constexpr size_t kPipeBytes = 1 << 20;

// Bytes in one direction.
class Pipe {
 public:
  IoResult write(const iovec* pieces, int count) {
    MutexLock lock(mutex_);
    if (closed_) return {IoStatus::kClosed, 0, EPIPE};
    size_t moved = 0;
    for (int i = 0; i < count && used_ < kPipeBytes; ++i) {
      const auto* bytes = static_cast<const std::byte*>(pieces[i].iov_base);
      for (size_t done = 0; done < pieces[i].iov_len && used_ < kPipeBytes;) {
        const size_t tail = (head_ + used_) % kPipeBytes;
        const size_t room = std::min(kPipeBytes - used_, kPipeBytes - tail);
        const size_t n = std::min(room, pieces[i].iov_len - done);
        std::memcpy(ring_.data() + tail, bytes + done, n);
        done += n;
        used_ += n;
        moved += n;
      }
    }
    if (moved == 0) return {IoStatus::kWouldBlock, 0, 0};
    readable_.make_readable();
    if (used_ == kPipeBytes) writable_.make_unwritable();
    return {IoStatus::kOk, moved, 0};
  }

  IoResult read(const iovec* places, int count) {
    MutexLock lock(mutex_);
    if (used_ == 0) return {closed_ ? IoStatus::kClosed : IoStatus::kWouldBlock, 0, 0};
    size_t moved = 0;
    for (int i = 0; i < count && used_ > 0; ++i) {
      auto* bytes = static_cast<std::byte*>(places[i].iov_base);
      for (size_t done = 0; done < places[i].iov_len && used_ > 0;) {
        const size_t n = std::min({used_, kPipeBytes - head_, places[i].iov_len - done});
        std::memcpy(bytes + done, ring_.data() + head_, n);
        head_ = (head_ + n) % kPipeBytes;
        done += n;
        used_ -= n;
        moved += n;
      }
    }
    if (used_ == 0 && !closed_) readable_.clear();
    writable_.clear();
    return {IoStatus::kOk, moved, 0};
  }

  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    readable_.make_readable();
    writable_.clear();
  }

  int readable() const noexcept { return readable_.descriptor(); }
  int writable() const noexcept { return writable_.descriptor(); }

 private:
  Mutex mutex_;
  std::vector<std::byte> ring_ FARSPAN_GUARDED_BY(mutex_) = std::vector<std::byte>(kPipeBytes);
  size_t head_ FARSPAN_GUARDED_BY(mutex_) = 0;
  size_t used_ FARSPAN_GUARDED_BY(mutex_) = 0;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  net::Level readable_, writable_;
};

class LoopbackStream final : public Stream {
 public:
  LoopbackStream(std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out, std::string description)
      : in_(std::move(in)), out_(std::move(out)), description_(std::move(description)) {}
  ~LoopbackStream() override { shut(); }

  IoResult read(const iovec* places, int count) noexcept override {
    return in_->read(places, count);
  }
  IoResult write(const iovec* pieces, int count) noexcept override {
    return out_->write(pieces, count);
  }
  int read_descriptor() const noexcept override { return in_->readable(); }
  int write_descriptor() const noexcept override { return out_->writable(); }
  void shut() noexcept override {
    in_->close();
    out_->close();
  }
  bool is_local() const noexcept override { return true; }
  pid_t peer_process() const noexcept override { return getpid(); }
  std::string describe() const override { return description_; }

 private:
  const std::shared_ptr<Pipe> in_, out_;
  const std::string description_;
};

// Where one listener is entered. After close() nobody is inside.
class Door {
 public:
  explicit Door(OnAccept on_accept) : on_accept_(std::move(on_accept)) {}

  // False when it is closed.
  bool enter(std::unique_ptr<Stream> stream) {
    {
      MutexLock lock(mutex_);
      if (closed_) return false;
      ++inside_;
    }
    const Visit visit{*this};
    on_accept_(std::move(stream));
    return true;
  }
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    while (inside_ > 0) empty_.wait(mutex_);
  }

 private:
  struct Visit {  // also when on_accept_ throws
    Door& door;
    ~Visit() {
      MutexLock lock(door.mutex_);
      if (--door.inside_ == 0) door.empty_.notify_all();
    }
  };
  const OnAccept on_accept_;
  Mutex mutex_;
  CondVar empty_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  int inside_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

// Who listens in this process.
struct Switchboard {
  Mutex mutex;
  uint64_t next FARSPAN_GUARDED_BY(mutex) = 1;
  std::map<std::string, std::shared_ptr<Door>> listeners FARSPAN_GUARDED_BY(mutex);
};

Switchboard& switchboard() {
  static Switchboard board;
  return board;
}

const std::string& process_prefix() {
  static const std::string prefix = [] {
    std::random_device entropy;
    return "loopback:" + std::to_string(getpid()) + "-" + std::to_string(entropy()) + ":";
  }();
  return prefix;
}

class LoopbackListener final : public Listener {
 public:
  explicit LoopbackListener(OnAccept on_accept)
      : door_(std::make_shared<Door>(std::move(on_accept))) {
    MutexLock lock(switchboard().mutex);
    endpoint_ = process_prefix() + std::to_string(switchboard().next++);
    switchboard().listeners[endpoint_] = door_;
  }
  ~LoopbackListener() override {
    {
      MutexLock lock(switchboard().mutex);
      switchboard().listeners.erase(endpoint_);
    }
    door_->close();
  }
  const std::string& endpoint() const noexcept override { return endpoint_; }

 private:
  const std::shared_ptr<Door> door_;
  std::string endpoint_;
};

class LoopbackTransport final : public Transport {
 public:
  std::string_view name() const noexcept override { return "loopback"; }

  std::unique_ptr<Listener> listen(const std::string&, OnAccept on_accept) override {
    return std::make_unique<LoopbackListener>(std::move(on_accept));
  }

  bool reaches(const std::string& endpoint) const override {
    return endpoint.starts_with(process_prefix());
  }

  void connect(const std::string& endpoint, Deadline, OnConnect on_connect) override {
    if (!reaches(endpoint)) {
      return on_connect(
          Error(Code::kInvalidArgument, "no loopback endpoint of this process: " + endpoint));
    }
    std::shared_ptr<Door> door;
    {
      MutexLock lock(switchboard().mutex);
      const auto found = switchboard().listeners.find(endpoint);
      if (found != switchboard().listeners.end()) door = found->second;
    }
    std::unique_ptr<Stream> stream;
    try {
      auto there = std::make_shared<Pipe>();
      auto back = std::make_shared<Pipe>();
      if (door && door->enter(std::make_unique<LoopbackStream>(there, back, endpoint))) {
        stream = std::make_unique<LoopbackStream>(back, there, endpoint);
      }
    } catch (const Error& e) {  // out of descriptors
      return on_connect(e);
    }
    if (!stream) {
      return on_connect(
          Error(Code::kUnavailable, "nobody listens there").operation("connect " + endpoint));
    }
    on_connect(std::move(stream));
  }
};

}  // namespace

std::unique_ptr<Transport> make_loopback_transport() {
  return std::make_unique<LoopbackTransport>();
}

}  // namespace farspan::transport
