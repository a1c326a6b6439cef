// What is special about shared memory. The rules: c10d/transport/README.md.
#include <farspan/c10d/transport/shm/shm_transport.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/net/unix_socket.h>
#include <farspan/c10d/transport/shm/shm_stream.h>

#include "c10d/transport/one_transport.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using transport::IoStatus;
using transport::ShmParts;
using transport::ShmStream;

class ShmTransportTest : public OneTransport<transport::make_shm_transport> {
 protected:
  // Someone who connects, says `words` beside `descriptors`, and waits for the end of it.
  void meet_stranger(const std::vector<uint32_t>& words, const std::vector<int>& descriptors) {
    const std::string endpoint = listener_->endpoint();
    const std::string name = endpoint.substr(5, endpoint.rfind(";host=") - 5);
    const net::OwnedDescriptor socket = net::new_unix_socket();
    ASSERT_EQ(net::connect_unix(socket.get(), name), 0);
    ASSERT_TRUE(
        net::send_with_descriptors(socket.get(), std::as_bytes(std::span(words)), descriptors));
    pollfd look{socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&look, 1, 20'000), 1) << "nobody hung up";
    char byte;
    EXPECT_LE(read(socket.get(), &byte, 1), 0);
  }

  std::atomic<int> accepted_{0};
  std::unique_ptr<transport::Listener> listener_ =
      transport_->listen("", [this](std::unique_ptr<transport::Stream>) { ++accepted_; });
};

// As shm_transport.cc introduces itself.
std::vector<uint32_t> introduction(uint32_t version = 1) {
  const auto bytes = static_cast<uint32_t>(ShmParts::memory_bytes());
  return {0x4d535046, version, bytes, 0};
}

TEST_F(ShmTransportTest, WhoBringsNothingOrSomethingElseIsTurnedAway) {
  const ShmParts right = ShmParts::create();
  const auto small = net::SharedMemory::create(4096);
  const net::OwnedDescriptor not_sealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(not_sealed.get(), static_cast<off_t>(ShmParts::memory_bytes())), 0);
  const int room = right.room[0].descriptor();

  meet_stranger({1, 2, 3, 4}, {});
  meet_stranger({1}, {});
  meet_stranger(introduction(), {});
  meet_stranger(introduction(), {right.memory.descriptor()});
  meet_stranger(introduction(), {right.memory.descriptor(), room});
  meet_stranger(introduction(), {small.descriptor(), room, room});
  meet_stranger(introduction(), {not_sealed.get(), room, room});
  meet_stranger(introduction(), {room, room, room});
  meet_stranger(introduction(2), {right.memory.descriptor(), room, room});
  EXPECT_EQ(accepted_, 0);

  // Expect: who brings the right thing is let in, so what was wrong above was wrong.
  const auto connected = connect(listener_->endpoint(), Deadline::after(Millis(20'000)));
  ASSERT_TRUE(connected.wait_for(Millis(20'000)));
  EXPECT_FALSE(connected.has_error());
  EXPECT_TRUE(eventually([&] { return accepted_ == 1; }));
}

TEST_F(ShmTransportTest, WhoHangsUpAtOnceIsForgotten) {
  const std::string endpoint = listener_->endpoint();
  const std::string name = endpoint.substr(5, endpoint.rfind(";host=") - 5);
  for (int i = 0; i < 10; ++i) {
    const net::OwnedDescriptor socket = net::new_unix_socket();
    ASSERT_EQ(net::connect_unix(socket.get(), name), 0);
  }
  const auto connected = connect(endpoint, Deadline::after(Millis(20'000)));
  ASSERT_TRUE(connected.wait_for(Millis(20'000)));
  ASSERT_TRUE(eventually([&] { return accepted_ == 1; }));
  // Expect: nobody polls for those who are gone.
  const uint64_t hits = reactor_.counters().spin_hits;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(reactor_.counters().spin_hits, hits + 20);
}

// Two ends without a transport.
struct Ends {
  Ends() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
    ShmParts one = ShmParts::create();
    const auto twin = [](int fd) { return net::OwnedDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
    ShmParts other{
        net::SharedMemory::open(twin(one.memory.descriptor()), one.memory.size()),
        {net::Level(twin(one.room[0].descriptor())), net::Level(twin(one.room[1].descriptor()))}};
    socket = sockets[0];
    left = std::make_unique<ShmStream>(net::OwnedDescriptor(sockets[0]), std::move(one),
                                       ShmParts::kDialled, "left");
    right = std::make_unique<ShmStream>(net::OwnedDescriptor(sockets[1]), std::move(other),
                                        ShmParts::kAccepted, "right");
  }
  int socket;
  std::unique_ptr<ShmStream> left, right;
};

bool is_readable(const transport::Stream& stream) {
  pollfd look{stream.read_descriptor(), POLLIN, 0};
  return poll(&look, 1, 0) == 1;
}

IoStatus send_byte(transport::Stream& stream) {
  std::byte byte{};
  const iovec piece{&byte, 1};
  return stream.write(&piece, 1).status;
}

IoStatus read_byte(transport::Stream& stream) {
  std::byte byte{};
  const iovec place{&byte, 1};
  return stream.read(&place, 1).status;
}

TEST(ShmStreamTest, OnlyWhoWaitsIsSignalled) {
  const Ends ends;
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kWouldBlock);
  ASSERT_EQ(send_byte(*ends.left), IoStatus::kOk);
  EXPECT_FALSE(is_readable(*ends.right)) << "it polls, as far as is known";
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kOk);

  EXPECT_TRUE(ends.right->expect_input());
  ASSERT_EQ(send_byte(*ends.left), IoStatus::kOk);
  ASSERT_EQ(send_byte(*ends.left), IoStatus::kOk);
  EXPECT_TRUE(is_readable(*ends.right));
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kOk);
  EXPECT_FALSE(is_readable(*ends.right)) << "the signal is taken, though a byte is left";
  EXPECT_FALSE(ends.right->expect_input()) << "who asks again hears of the byte";
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kOk);
  EXPECT_TRUE(ends.right->expect_input());
}

TEST(ShmStreamTest, WhoWaitsNoMoreIsNotSignalled) {
  const Ends ends;
  EXPECT_TRUE(ends.right->expect_input());
  ends.right->expect_no_input();
  ASSERT_EQ(send_byte(*ends.left), IoStatus::kOk);
  EXPECT_FALSE(is_readable(*ends.right));
  EXPECT_FALSE(ends.right->expect_input()) << "there is a byte";
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kOk);
}

TEST(ShmStreamTest, TheEndOfAProcessIsSeenThoughItSaysNothing) {
  const Ends ends;
  ASSERT_EQ(send_byte(*ends.left), IoStatus::kOk);
  ASSERT_EQ(shutdown(ends.socket, SHUT_RDWR), 0);  // as the kernel does for one that is killed
  EXPECT_FALSE(ends.right->expect_input()) << "there is a byte";
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kOk);
  ends.right->expect_input();
  EXPECT_TRUE(is_readable(*ends.right));
  EXPECT_EQ(read_byte(*ends.right), IoStatus::kClosed);
  EXPECT_EQ(send_byte(*ends.right), IoStatus::kClosed);
  EXPECT_FALSE(ends.right->expect_input());
}

}  // namespace
}  // namespace farspan::testing
