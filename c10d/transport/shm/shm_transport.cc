#include <farspan/c10d/transport/shm/shm_transport.h>

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/unix_socket.h>
#include <farspan/c10d/transport/shm/shm_stream.h>
#include <farspan/c10d/transport/unix/local_transport.h>

namespace farspan::transport {
namespace {

// How long who has connected may take to bring the memory, which it does at once.
constexpr std::chrono::seconds kPatience{10};

// The first and only message on the socket, with the descriptors of the memory and of the two
// sides' rooms. What differs in layout has another version.
struct Introduction {
  static constexpr uint32_t kMagic = 0x4d535046;  // "FPSM"
  static constexpr uint32_t kVersion = 1;
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t memory_bytes = ShmParts::memory_bytes();
  bool operator==(const Introduction&) const = default;
};

std::unique_ptr<Stream> introduce(net::OwnedDescriptor socket, std::string description) {
  ShmParts parts = ShmParts::create();
  const Introduction introduction;
  const std::array descriptors{parts.memory.descriptor(), parts.room[0].descriptor(),
                               parts.room[1].descriptor()};
  if (!net::send_with_descriptors(socket.get(), std::as_bytes(std::span(&introduction, 1)),
                                  descriptors)) {
    throw Error(Code::kUnavailable, std::string("pass shared memory: ") + std::strerror(errno));
  }
  return std::make_unique<ShmStream>(std::move(socket), std::move(parts), ShmParts::kDialled,
                                     std::move(description));
}

// A socket that was accepted, until the memory has come.
class Newcomer final : public net::Source {
 public:
  Newcomer(net::Reactor& reactor, net::OwnedDescriptor socket, std::string description,
           OnAccept on_accept)
      : reactor_(reactor),
        descriptor_(socket.get()),
        description_(std::move(description)),
        on_accept_(std::move(on_accept)),
        socket_(std::move(socket)) {}

  void start() {
    timer_ = reactor_.timers().add(Clock::now() + kPatience, [weak = weak_from_this()] {
      if (const auto late = weak.lock()) static_cast<Newcomer&>(*late).give_up();
    });
    reactor_.add(shared_from_this());
  }

  int descriptor() const noexcept override { return descriptor_; }

  bool pump(net::Role& role) noexcept override {
    if (done_) return false;  // the descriptor is the stream's by now
    Introduction introduction;
    net::PassedDescriptors passed;
    const ssize_t got = net::receive_with_descriptors(
        descriptor_, std::as_writable_bytes(std::span(&introduction, 1)), passed);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    const auto keep = shared_from_this();
    done_ = true;
    reactor_.remove(*this);
    reactor_.timers().cancel(timer_);
    role.release();
    if (got == sizeof introduction && introduction == Introduction()) {
      admit(passed);
    } else if (got > 0) {
      refuse("it speaks another protocol or version");
    }
    hang_up();
    return true;
  }

 private:
  void admit(net::PassedDescriptors& passed) noexcept {
    std::unique_ptr<Stream> stream;
    if (!passed[2]) return refuse("it brought too little");
    try {
      MutexLock lock(mutex_);
      ShmParts parts{net::SharedMemory::open(std::move(passed[0]), ShmParts::memory_bytes()),
                     {net::Level(std::move(passed[1])), net::Level(std::move(passed[2]))}};
      stream = std::make_unique<ShmStream>(std::move(socket_), std::move(parts),
                                           ShmParts::kAccepted, description_);
    } catch (const Error& e) {
      return refuse(e.what());
    }
    on_accept_(std::move(stream));
  }

  void refuse(const char* why) noexcept {
    log(LogLevel::kWarning, "transport",
        "turned away who connected to " + description_ + ": " + why);
  }

  // Unless a stream has the socket.
  void hang_up() noexcept {
    MutexLock lock(mutex_);
    socket_.reset();
  }

  // Whoever reads sees the end.
  void give_up() noexcept {
    MutexLock lock(mutex_);
    if (socket_) shutdown(socket_.get(), SHUT_RDWR);
  }

  net::Reactor& reactor_;
  const int descriptor_;
  const std::string description_;
  const OnAccept on_accept_;
  net::TimerId timer_ = 0;
  bool done_ = false;  // of the holder of the role
  Mutex mutex_;
  net::OwnedDescriptor socket_ FARSPAN_GUARDED_BY(mutex_);  // until a stream has it
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<net::Loop> loop,
                                              net::Reactor& reactor) {
  LocalKind kind;
  kind.name = "shm";
  kind.dialled = introduce;
  kind.accepted = [&reactor](net::OwnedDescriptor socket, std::string description,
                             const OnAccept& on_accept) {
    std::make_shared<Newcomer>(reactor, std::move(socket), std::move(description), on_accept)
        ->start();
  };
  return make_local_transport(std::move(kind), std::move(loop), reactor);
}

}  // namespace farspan::transport
