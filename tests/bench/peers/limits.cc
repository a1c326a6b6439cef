// What the machine itself allows: the same bytes without any framework.
//
//   limits --transport shm|tcp   the limits of the fixed cases, as lines of JSON
//   limits --machine             further figures that explain them
//
// small call   both sides polling; nobody sleeps or is woken: a word in shared memory there and
//              back, or 64 bytes through TCP
// .. pause     64 bytes there and back through a unix socket on which both sides sleep
// ring tensor  the bytes copied into a ring in shared memory, and out of it by the other process
// tensor       the bytes there and 64 bytes back through a socket, polling or sleeping; on one
//              host also a small call and one process_vm_readv of the bytes, by one thread or by
//              two; the best of all counts
#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/figures.h"
#include "bench/peers/child.h"

namespace bench {
namespace {

constexpr size_t kSmall = 64;
constexpr size_t kSmallCalls = 20'000;
constexpr size_t kSocketsNeverWin = 1UL << 20;  // on one host: process_vm_readv is twice as fast

// What is sent lies in ordinary pages, as tensors do. What is received, in huge ones where the
// system has some for who asks, as the best program would have it.
enum class Pages { kOrdinary, kHuge };

// Memory of its own, with every page touched.
class Block {
 public:
  explicit Block(size_t size, Pages pages = Pages::kOrdinary, bool touched = true)
      : size_(size + kHugePage) {
    all_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(all_ != MAP_FAILED, "mmap");
    const auto begin = reinterpret_cast<uintptr_t>(all_);
    data_ = static_cast<char*>(all_) + (-begin % kHugePage);
    if (pages == Pages::kHuge) madvise(data_, size, MADV_HUGEPAGE);
    if (touched) std::memset(data_, 1, size);
  }
  ~Block() { munmap(all_, size_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* data() const { return data_; }

 private:
  static constexpr size_t kHugePage = 2UL << 20;

  size_t size_;
  void* all_;
  char* data_;
};

// Two connected stream sockets: unix, or TCP over loopback.
class SocketPair {
 public:
  explicit SocketPair(std::string_view transport) { transport == "tcp" ? open_tcp() : open_unix(); }
  ~SocketPair() { close(here), close(there); }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;
  int here = -1, there = -1;

 private:
  void open_unix() {
    std::array<int, 2> ends{};
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0, "socketpair");
    here = ends[0], there = ends[1];
  }
  void open_tcp() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    require(bind(listener, at, size) == 0 && listen(listener, 1) == 0, "listen");
    require(getsockname(listener, at, &size) == 0, "getsockname");
    here = socket(AF_INET, SOCK_STREAM, 0);
    require(connect(here, at, size) == 0, "connect");
    there = accept(listener, nullptr, nullptr);
    require(there >= 0, "accept");
    close(listener);
    const int on = 1;
    for (const int end : {here, there}) {
      setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
  }
};

enum class Waiting { kPolling, kSleeping };

// All of `size` bytes; false at the end of the stream.
bool receive(int socket, char* to, size_t size, Waiting waiting) {
  const int flags = waiting == Waiting::kPolling ? MSG_DONTWAIT : 0;
  while (size > 0) {
    const ssize_t got = recv(socket, to, size, flags);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    if (got > 0) to += got, size -= static_cast<size_t>(got);
  }
  return true;
}

void send_all(int socket, const char* from, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(socket, from, size, MSG_NOSIGNAL);
    require(sent > 0, "send");
    from += sent, size -= static_cast<size_t>(sent);
  }
}

// Microseconds for `size` bytes to another process and `kSmall` bytes back.
std::vector<double> exchange(std::string_view transport, size_t size, size_t calls, Waiting waiting,
                             bool after_pauses = false) {
  const SocketPair pair(transport);
  const Child echo([&] {
    const Block block(size, Pages::kHuge);
    while (receive(pair.there, block.data(), size, waiting)) {
      send_all(pair.there, block.data(), kSmall);
    }
  });
  const Block block(size);
  const auto call = [&] {
    send_all(pair.here, block.data(), size);
    require(receive(pair.here, block.data(), kSmall, waiting), "receive");
  };
  times_of(std::max<size_t>(calls / 10, 2), call);
  return after_pauses ? times_after_pauses(calls, call) : times_of(calls, call);
}

// Microseconds for process_vm_readv of `size` warm bytes by `readers` threads (1 or 2), which
// share the work in chunks.
std::vector<double> read_other_process(size_t size, size_t calls, int readers, size_t chunk) {
  const Block source(size), target(size, Pages::kHuge);
  const Child child([] { pause(); });
  std::atomic<size_t> next{0};
  std::atomic<size_t> turn{0}, helped{0};
  const auto pull = [&] {
    for (;;) {
      const size_t at = next.fetch_add(chunk);
      if (at >= size) return;
      const size_t bytes = std::min(chunk, size - at);
      iovec to{target.data() + at, bytes}, from{source.data() + at, bytes};
      require(process_vm_readv(child.pid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(bytes),
              "process_vm_readv");
    }
  };
  std::thread helper;
  constexpr size_t kStop = ~size_t{0};
  if (readers == 2) {
    helper = std::thread([&] {  // polls for its turn
      for (size_t seen = 0;;) {
        const size_t now = turn.load(std::memory_order_acquire);
        if (now == kStop) return;
        if (now == seen) continue;
        seen = now;
        pull();
        helped.store(seen, std::memory_order_release);
      }
    });
  }
  size_t call_number = 0;
  const auto call = [&] {
    next = 0;
    turn.store(++call_number, std::memory_order_release);
    pull();
    while (readers == 2 && helped.load(std::memory_order_acquire) != call_number) {
    }
  };
  times_of(2, call);
  auto times = times_of(calls, call);
  turn = kStop;
  if (helper.joinable()) helper.join();
  return times;
}

// Microseconds for `size` bytes to go through a ring in shared memory: one process copies them in,
// another one out, both polling.
std::vector<double> copy_through_ring(size_t size, size_t calls) {
  constexpr size_t kChunk = 64UL << 10, kChunks = 16;
  struct Ring {
    alignas(64) std::atomic<size_t> filled{0};
    alignas(64) std::atomic<size_t> emptied{0};
    alignas(64) std::array<std::array<char, kChunk>, kChunks> chunks;
  };
  const Shared<Ring> shared;
  Ring& ring = *shared;
  const Child child([&] {
    const Block target(size, Pages::kHuge);
    for (size_t chunk = 0;; ++chunk) {
      while (ring.filled.load(std::memory_order_acquire) == chunk) continue;
      std::memcpy(target.data() + chunk * kChunk % size, ring.chunks[chunk % kChunks].data(),
                  kChunk);
      ring.emptied.store(chunk + 1, std::memory_order_release);
    }
  });
  const Block source(size);
  size_t chunk = 0;
  const auto call = [&] {
    for (size_t done = 0; done < size; done += kChunk, ++chunk) {
      while (chunk - ring.emptied.load(std::memory_order_acquire) == kChunks) continue;
      std::memcpy(ring.chunks[chunk % kChunks].data(), source.data() + done, kChunk);
      ring.filled.store(chunk + 1, std::memory_order_release);
    }
    while (ring.emptied.load(std::memory_order_acquire) != chunk) continue;
  };
  times_of(2, call);
  return times_of(calls, call);
}

long futex(std::atomic<int>& word, int operation, int value) {
  return syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

// Microseconds for a word in shared memory to change there and back.
std::vector<double> shared_word(Waiting waiting) {
  const bool sleeping = waiting == Waiting::kSleeping;
  struct Words {
    alignas(64) std::atomic<int> ping{0};
    alignas(64) std::atomic<int> pong{0};
  };
  const Shared<Words> shared;
  std::atomic<int>&ping = (*shared).ping, &pong = (*shared).pong;
  const auto set = [&](std::atomic<int>& word, int value) {
    word = value;
    if (sleeping) futex(word, FUTEX_WAKE, 1);
  };
  const auto await = [&](std::atomic<int>& word, int value) {
    while (word != value) {
      if (sleeping) futex(word, FUTEX_WAIT, value - 1);
    }
  };
  const Child child([&] {
    for (int i = 1;; ++i) await(ping, i), set(pong, i);
  });
  int i = 0;
  return times_of(kSmallCalls, [&] { set(ping, ++i), await(pong, i); });
}

void report_limits(const std::string& transport) {
  const bool one_host = transport == "shm";
  const auto small = one_host ? shared_word(Waiting::kPolling)
                              : exchange(transport, kSmall, kSmallCalls, Waiting::kPolling);
  const double small_call = median(small);
  report("small call p50 " + transport, small_call, "us");
  if (one_host) {
    const auto asleep = exchange("unix", kSmall, kCallsAfterPauses, Waiting::kSleeping, true);
    report("small call after a pause p50 shm", median(asleep), "us");
    report_tensor(kThroughRing, transport,
                  copy_through_ring(kThroughRing.bytes, kThroughRing.calls), "ring tensor ");
  }

  for (const TensorSize& size : kTensorSizes) {
    std::vector<std::vector<double>> ways;
    if (!one_host || size.bytes < kSocketsNeverWin) {
      for (const Waiting waiting : {Waiting::kPolling, Waiting::kSleeping}) {
        ways.push_back(exchange(transport, size.bytes, size.calls, waiting));
      }
    }
    if (one_host) {
      const auto add_reader = [&](int readers, size_t chunk) {
        ways.push_back(read_other_process(size.bytes, size.calls, readers, chunk));
        for (double& time : ways.back()) time += small_call;
      };
      add_reader(1, size.bytes);
      for (const size_t chunk : {256UL << 10, 4UL << 20}) {
        if (chunk < size.bytes) add_reader(2, chunk);
      }
    }
    const auto best = std::min_element(ways.begin(), ways.end(),
                                       [](auto& a, auto& b) { return median(a) < median(b); });
    report_tensor(size, transport, *best);
    if (one_host && is_echoed(size)) {
      for (double& time : *best) time *= 2;
      report_echo(size, transport, *best);
    }
  }
}

void report_machine() {
  for (const char* transport : {"unix", "tcp"}) {
    report(std::string(transport) + " socket 64 B there and back, sleeping",
           median(exchange(transport, kSmall, kSmallCalls, Waiting::kSleeping)), "us");
  }
  report("shared memory there and back, sleeping", median(shared_word(Waiting::kSleeping)), "us");
  report("shared memory there and back, polling", median(shared_word(Waiting::kPolling)), "us");

  constexpr size_t kSize = 64UL << 20, kCalls = 20;
  const auto speed = [](double microseconds) { return double(kSize) / microseconds / 1e3; };
  const Block source(kSize), target(kSize);
  report("memcpy 64 MiB into touched memory",
         speed(median(times_of(kCalls, [&] { std::memcpy(target.data(), source.data(), kSize); }))),
         "GB/s");
  std::vector<double> fresh;
  for (size_t i = 0; i < kCalls; ++i) {
    const Block untouched(kSize, Pages::kOrdinary, false);
    fresh.push_back(
        times_of(1, [&] { std::memcpy(untouched.data(), source.data(), kSize); }).front());
  }
  report("memcpy 64 MiB into fresh memory", speed(median(fresh)), "GB/s");
  report("process_vm_readv 64 MiB, one thread",
         speed(median(read_other_process(kSize, kCalls, 1, kSize))), "GB/s");
  report("process_vm_readv 64 MiB, two threads",
         speed(median(read_other_process(kSize, kCalls, 2, 4UL << 20))), "GB/s");
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "", which = argc > 2 ? argv[2] : "";
  if (what == "--machine") {
    bench::report_machine();
  } else if (what == "--transport" && (which == "shm" || which == "tcp")) {
    bench::report_limits(std::string(which));
  } else {
    std::fprintf(stderr, "usage: limits --transport shm|tcp, or limits --machine\n");
    return 2;
  }
}
