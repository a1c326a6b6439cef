// The rules under test: "every method from any thread" of c10d/net/mapped_blocks.h, shared_blocks.h
// and of a pool over them, for ThreadSanitizer above all. One process is both ends here: it maps
// its own blocks a second time, at places that the sanitizer takes for other memory, so each block
// is compared as a whole.
#include <farspan/c10d/net/mapped_blocks.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/net/memory_pool.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/net/shared_blocks.h>

#include "support/eventually.h"
#include "support/process_counts.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using net::MappedBlocks;
using net::MappedBytes;
using net::MemoryPool;
using net::SharedBlocks;

constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr int kThreads = 4;
// So short that what is idle goes on the reactor's threads all the time, beside what is done here.
constexpr std::chrono::milliseconds kKeep{2};
constexpr size_t kMostIdle = kMiB;  // less than what is let go within that time

std::vector<uint64_t> words_of(uint64_t seed, size_t bytes) {
  std::vector<uint64_t> words(bytes / sizeof seed);
  std::iota(words.begin(), words.end(), seed);
  return words;
}
void fill(const Buffer& buffer, uint64_t seed) {
  std::memcpy(buffer.data(), words_of(seed, buffer.size()).data(), buffer.size());
}
bool holds(const Buffer& buffer, uint64_t seed) {
  return std::memcmp(buffer.data(), words_of(seed, buffer.size()).data(), buffer.size()) == 0;
}
// No two say the same of any word.
uint64_t new_seed() {
  static std::atomic<uint64_t> made{0};
  return ++made << 32;
}
// Of 64 to 256 KiB: few classes, so that blocks are used again.
size_t some_bytes(SeededRandom& random) { return 64 * kKiB * (1 + random.below(4)); }

// Mappings and descriptors of blocks in this process.
int blocks_here() {
  int descriptors = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    descriptors += target.starts_with("/memfd:farspan-block");
  }
  return descriptors + ProcessCounts::now().memories;
}

// What threads leave for each other, so that most is let go by another one than made it.
template <class T>
class Shelf {
 public:
  // Leaves one and takes any; nothing as long as there are few.
  std::optional<T> exchange(T one, size_t which) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(one));
    if (all_.size() <= 2 * kThreads) return std::nullopt;
    const size_t taken = which % all_.size();
    if (taken + 1 < all_.size()) std::swap(all_[taken], all_.back());
    std::optional<T> result(std::move(all_.back()));
    all_.pop_back();
    return result;
  }
  std::vector<T> take_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(all_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<T> all_;
};

class BlocksOfThreads : public ::testing::Test {
 protected:
  // A block of which both views are held; the mapped one goes first.
  struct Given {
    Buffer here, there;
    uint64_t seed = 0;
  };

  // Lets each thread do it, and waits for their ends.
  void run_threads(const std::function<void(SeededRandom& random)>& work) {
    std::vector<std::thread> threads;
    running_ = kThreads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        SeededRandom random(static_cast<uint64_t>(thread) + 1);
        try {
          work(random);
        } catch (const std::exception& why) {
          ADD_FAILURE() << "thread " << thread << ": " << why.what();
        }
        --running_;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // The next one, to the same process, is there before the old one ends, as when a connection
  // broke: some threads still map with the old one.
  void change_line() {
    use_line(MappedBlocks::make(getpid(), reactor_.timers(), [this](uint64_t) { ++returned_; },
                                {.bytes = bytes_, .keep = kKeep}));
  }
  void use_line(std::shared_ptr<MappedBlocks> one) {
    {
      const std::lock_guard lock(line_mutex_);
      line_.swap(one);
    }
    if (one) one->close();
  }
  std::shared_ptr<MappedBlocks> line() {
    const std::lock_guard lock(line_mutex_);
    return line_;
  }
  Buffer map(const Buffer& here) {
    const auto place = blocks_->find(here.data());
    if (!place) throw Error(Code::kInternal, "it is in no block");
    Buffer there = line()->map(place->block, place->offset, here.size());
    ++mapped_;
    return there;
  }

  // Makes a block, maps it, writes there what is read here, and lets go of another thread's.
  void give_and_take(SeededRandom& random) {
    const size_t bytes = some_bytes(random);
    Given given{pool_->allocate(bytes), {}, new_seed()};
    fill(given.here, given.seed);
    given.there = map(given.here);
    wrong_ += !holds(given.there, given.seed);
    given.seed = new_seed();
    fill(given.there, given.seed);
    auto taken = given_.exchange(std::move(given), static_cast<size_t>(random.next()));
    if (taken) let_go(std::move(*taken));
  }
  void let_go(Given given) {
    wrong_ += !holds(given.here, given.seed) || !holds(given.there, given.seed);
    given.there = {};
    // Most likely it is still mapped.
    given.there = map(given.here);
    wrong_ += !holds(given.there, given.seed);
    given.there = {};  // before its block may be anybody's
  }
  void expect_nothing_left() {
    for (Given& given : given_.take_all()) let_go(std::move(given));
    EXPECT_EQ(wrong_, 0);
    EXPECT_EQ(bytes_->in_use(), 0u);
    EXPECT_LE(bytes_->idle(), kMostIdle);
    EXPECT_TRUE(eventually([&] { return bytes_->idle() == 0; })) << bytes_->idle();
    use_line(nullptr);
    EXPECT_EQ(bytes_->idle(), 0u);
    EXPECT_EQ(pool_->counters().used_bytes, 0u);
    EXPECT_LE(pool_->counters().idle_bytes, kMostIdle);
    pool_->shrink_by(nullptr);
    pool_->trim();
    // What a timer has taken out goes a little later.
    EXPECT_TRUE(eventually([&] { return blocks_here() == before_; })) << blocks_here();
  }

  const int before_ = blocks_here();
  std::atomic<int> wrong_{0}, running_{0};
  std::atomic<uint64_t> mapped_{0}, returned_{0};
  const std::shared_ptr<SharedBlocks> blocks_ = std::make_shared<SharedBlocks>();
  const std::shared_ptr<MemoryPool> pool_ =
      MemoryPool::make({.max_idle_bytes = kMostIdle, .keep = kKeep}, blocks_);
  const std::shared_ptr<MappedBytes> bytes_ = std::make_shared<MappedBytes>(kMostIdle);
  net::Reactor reactor_{net::ReactorOptions{}};
  std::mutex line_mutex_;
  std::shared_ptr<MappedBlocks> line_;
  Shelf<Given> given_;
};

TEST_F(BlocksOfThreads, EachIsToldOfOnceWhoeverLetsItGo) {
  pool_->shrink_by(&reactor_.timers());
  change_line();
  run_threads([&](SeededRandom& random) {
    for (int block = 0; block < repetitions(200); ++block) give_and_take(random);
  });
  expect_nothing_left();
  EXPECT_EQ(returned_.load(), mapped_.load());
}

TEST_F(BlocksOfThreads, AreMappedAndLetGoWhileTheirLineEnds) {
  pool_->shrink_by(&reactor_.timers());
  change_line();
  std::atomic<int> ended{0};
  running_ = kThreads;  // before the other thread looks
  std::thread ends([&] {
    SeededRandom random(99);
    do {
      const uint64_t enough = mapped_ + 1 + random.below(40);
      while (mapped_ < enough && running_ > 0) std::this_thread::yield();
      change_line();
      ++ended;
    } while (running_ > 0);
  });
  run_threads([&](SeededRandom& random) {
    for (int block = 0; block < repetitions(200); ++block) give_and_take(random);
  });
  ends.join();
  expect_nothing_left();
  EXPECT_LE(returned_.load(), mapped_.load());
  EXPECT_GT(ended, 0);
}

TEST_F(BlocksOfThreads, AreGivenAndTakenOfOnePoolByAllAtOnce) {
  pool_->shrink_by(&reactor_.timers());
  struct Taken {
    Buffer buffer;
    uint64_t seed = 0;
  };
  Shelf<Taken> shelf;
  std::mutex abandoned_mutex;
  std::set<uint64_t> abandoned;
  const auto abandon = [&](const Buffer& buffer) {
    const auto place = blocks_->find(buffer.data());
    if (!place) return;
    {
      const std::lock_guard lock(abandoned_mutex);
      abandoned.insert(place->block.id);
    }
    blocks_->abandon(buffer.data());
    wrong_ += blocks_->find(buffer.data()).has_value();
  };
  const auto is_good = [&](const Buffer& buffer) {
    const size_t last = buffer.size() - 1;
    const auto place = blocks_->find(buffer.data() + last);
    const std::lock_guard lock(abandoned_mutex);
    return place && place->offset == last && place->block.bytes > last &&
           abandoned.count(place->block.id) == 0;
  };
  run_threads([&](SeededRandom& random) {
    for (int block = 0; block < repetitions(500); ++block) {
      Taken one{pool_->allocate(some_bytes(random)), new_seed()};
      wrong_ += !is_good(one.buffer);
      fill(one.buffer, one.seed);
      const auto taken = shelf.exchange(std::move(one), static_cast<size_t>(random.next()));
      if (!taken) continue;
      wrong_ += !holds(taken->buffer, taken->seed);
      if (random.chance(0.1)) abandon(taken->buffer);
      if (random.chance(0.02)) pool_->trim();
    }
  });
  for (const Taken& left : shelf.take_all()) wrong_ += !holds(left.buffer, left.seed);
  EXPECT_FALSE(abandoned.empty());
  EXPECT_GT(pool_->counters().reused, 0u);
  expect_nothing_left();
}

}  // namespace
}  // namespace farspan::testing
