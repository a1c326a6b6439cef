// A source for tests: an eventfd whose counts are messages.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <utility>

#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/reactor.h>

namespace farspan::testing {

class Mailbox final : public net::Source {
 public:
  // `on_read` is told how many messages were read, after the role has been released.
  explicit Mailbox(std::function<void(uint64_t)> on_read = nullptr)
      : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        write_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        on_read_(std::move(on_read)) {}

  void post(uint64_t messages = 1) {
    ASSERT_EQ(write(fd_.get(), &messages, sizeof messages), ssize_t{sizeof messages});
  }
  uint64_t received() const { return received_.load(); }
  int flushes() const { return flushes_.load(); }
  // How often the calling thread has armed one.
  static int& armed_here() {
    thread_local int count = 0;
    return count;
  }

  int descriptor() const noexcept override { return fd_.get(); }
  int write_descriptor() const noexcept override { return write_fd_.get(); }
  bool expect_input() noexcept override {
    ++armed_here();
    return true;
  }
  bool flush() noexcept override {
    ++flushes_;
    return false;
  }
  bool pump(net::Role& role) noexcept override {
    // Only one thread reads at a time.
    EXPECT_FALSE(reading_.exchange(true));
    uint64_t messages = 0;
    const bool some = read(fd_.get(), &messages, sizeof messages) == sizeof messages;
    EXPECT_TRUE(reading_.exchange(false));
    if (!some) return false;
    const auto keep = shared_from_this();
    role.release();
    received_ += messages;
    if (on_read_) on_read_(messages);
    return true;
  }

 private:
  const net::OwnedDescriptor fd_, write_fd_;
  const std::function<void(uint64_t)> on_read_;
  std::atomic<uint64_t> received_{0};
  std::atomic<int> flushes_{0};
  std::atomic<bool> reading_{false};
};

}  // namespace farspan::testing
