// The rules under test: rpc/wire/WIRE.md, "What a receiver checks". Whatever comes in: no crash, no
// allocation above the limits, no failure but kCorrupt. Meant for AddressSanitizer, too.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <farspan/rpc/wire/messages.h>

#include "rpc/wire/frame_bytes.h"
#include "support/seeded_random.h"

namespace {
std::atomic<size_t> largest_allocation{0};

void* watched(size_t size) {
  size_t largest = largest_allocation.load(std::memory_order_relaxed);
  while (size > largest && !largest_allocation.compare_exchange_weak(largest, size)) {
  }
  if (void* block = std::malloc(size)) return block;
  throw std::bad_alloc();
}
}  // namespace

// Not inlined: g++ 12 warns of a free() that it sees without the malloc().
[[gnu::noinline]] void* operator new(size_t size) { return watched(size); }
[[gnu::noinline]] void* operator new[](size_t size) { return watched(size); }
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace farspan::testing {
namespace {

using wire::FrameLimits;

constexpr FrameLimits kLimits{
    .max_meta_bytes = 256 << 10, .max_segments = 64, .max_payload_bytes = 1 << 20};
// The largest block that a reader may ask for: its slab, the head of the largest frame, or the meta
// of one with as many small segments as there may be; and what the standard library adds.
constexpr size_t kLargestBlock = (1 << 20) + (256 << 10) + 64 * 8 + 4096;

// Damages a stream in one of the ways that damage numbers and structure most.
void damage(Bytes& stream, const std::vector<size_t>& heads, SeededRandom& random) {
  if (stream.empty()) return;
  const size_t at = random.below(stream.size());
  switch (random.below(7)) {
    case 0:  // one bit
      stream[at] ^= static_cast<std::byte>(1 << random.below(8));
      return;
    case 1:  // another byte
      stream[at] = static_cast<std::byte>(random.next());
      return;
    case 2: {  // a field of a header
      const size_t head = heads[random.below(heads.size())];
      const size_t field = head + random.below(72);
      if (field < stream.size()) stream[field] = static_cast<std::byte>(random.next());
      return;
    }
    case 3: {  // a number at the edge of its type, in a header or segment table
      constexpr uint64_t kEdges[] = {0, 1, 7, 8, ~0ull, ~0ull - 6, 1ull << 63, 1ull << 32, 1 << 20};
      const size_t word = heads[random.below(heads.size())] + 8 * random.below(9);
      const uint64_t edge = kEdges[random.below(std::size(kEdges))];
      if (word + 8 <= stream.size()) std::memcpy(stream.data() + word, &edge, 8);
      return;
    }
    case 4:  // the end is missing
      stream.resize(at);
      return;
    case 5: {  // a part is missing in the middle
      const size_t size = std::min(stream.size() - at, 1 + random.below(64));
      stream.erase(stream.begin() + static_cast<ptrdiff_t>(at),
                   stream.begin() + static_cast<ptrdiff_t>(at + size));
      return;
    }
    default: {  // a part comes twice
      const size_t size = std::min(stream.size() - at, 1 + random.below(64));
      const Bytes part(stream.begin() + static_cast<ptrdiff_t>(at),
                       stream.begin() + static_cast<ptrdiff_t>(at + size));
      stream.insert(stream.begin() + static_cast<ptrdiff_t>(random.below(stream.size())),
                    part.begin(), part.end());
    }
  }
}

// What must hold for each frame that was taken for good.
void expect_sound(const wire::InFrame& frame) {
  EXPECT_EQ(frame.header.magic, wire::kMagic);
  EXPECT_EQ(frame.meta.size(), frame.header.meta_bytes);
  EXPECT_LE(frame.meta.size(), kLimits.max_meta_bytes);
  EXPECT_EQ(frame.segments.size(), frame.header.segment_count);
  uint64_t payload = 0, sum = 0;
  for (const Buffer& segment : frame.segments) {
    payload += wire::padded(segment.size());
    for (const std::byte byte : segment.span()) sum += static_cast<uint64_t>(byte);  // readable
  }
  for (const std::byte byte : frame.meta.span()) sum += static_cast<uint64_t>(byte);
  EXPECT_EQ(payload, frame.header.payload_bytes);
  EXPECT_LE(payload, kLimits.max_payload_bytes);
  EXPECT_LT(sum, ~uint64_t{0});
}

TEST(FrameMutation, DamagedStreamsGiveSoundFramesOrAreCorrupt) {
  const RawFrame frames[] = {
      {.meta = pattern(64), .segments = {pattern(100), {}, pattern(3)}},
      {.kind = 0x20, .flags = 1, .meta = pattern(8)},
      {.segments = {pattern(20'000), pattern(17)}},
      {.kind = 0x41, .meta = pattern(800)},
      {},
  };
  Bytes whole;
  std::vector<size_t> heads;
  for (const RawFrame& frame : frames) {
    heads.push_back(whole.size());
    append(whole, to_bytes(frame));
  }
  int corrupt = 0, sound = 0;
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    SeededRandom random(seed);
    Bytes stream = whole;
    for (size_t i = 1 + random.below(4); i > 0; --i) damage(stream, heads, random);
    Reading reading(kLimits);
    largest_allocation = 0;
    const auto error = reading.error_of(stream, 1 + random.below(4096));
    const size_t largest = largest_allocation;
    if (error) {
      EXPECT_EQ(error->code(), Code::kCorrupt);
      ++corrupt;
    }
    for (const wire::InFrame& frame : reading.frames()) expect_sound(frame);
    sound += static_cast<int>(reading.frames().size());
    EXPECT_LE(largest, kLargestBlock);
    EXPECT_LE(reading.allocated(),
              reading.frames().size() * kLimits.max_payload_bytes + kLimits.max_payload_bytes);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
  // Expect: the damage was neither always seen nor never.
  EXPECT_GT(corrupt, 1000);
  EXPECT_GT(sound, 1000);
}

TEST(FrameMutation, NoiseIsCorruptAfterItsFirstHeader) {
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    SeededRandom random(seed);
    Bytes noise(48 + random.below(400));
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random.next());
    Reading reading(kLimits);
    const auto error = reading.error_of(noise, 1 + random.below(64));
    ASSERT_TRUE(error) << "seed " << seed;
    EXPECT_EQ(error->code(), Code::kCorrupt);
    EXPECT_EQ(reading.allocated(), 0u);
  }
}

// Decodes what may be a message: true when it could be read. Its strings cannot hold more than the
// traversal limit lets be read.
template <class Decode>
bool survives(const Bytes& meta, Decode decode) {
  const Buffer aligned = Buffer::copy_of(meta);
  largest_allocation = 0;
  try {
    decode(aligned.span());
    EXPECT_LE(largest_allocation.load(), 16 * meta.size() + 4096);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
    EXPECT_LE(largest_allocation.load(), 16 * meta.size() + 4096);
    return false;
  }
}

template <class Decode>
void mutate(const Bytes& whole, Decode decode) {
  ASSERT_TRUE(survives(whole, decode));
  int refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {  // every bit
    for (int bit = 0; bit < 8; ++bit) {
      Bytes meta = whole;
      meta[i] ^= static_cast<std::byte>(1 << bit);
      refused += !survives(meta, decode);
    }
  }
  for (size_t size = 0; size < whole.size(); ++size) {  // every end
    refused +=
        !survives(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)), decode);
  }
  const size_t words = whole.size() / 8;
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    SeededRandom random(seed);
    Bytes meta = whole;
    for (size_t i = 1 + random.below(6); i > 0; --i) {
      std::byte* word = meta.data() + 8 * random.below(words);
      constexpr uint64_t kEdges[] = {0, ~0ull, 1ull << 63, 0x7fff'ffff'0000'0001,
                                     0xffff'fff8'0000'0007};
      switch (random.below(4)) {
        case 0:
          word[random.below(8)] = static_cast<std::byte>(random.next());
          break;
        case 1:  // pointers that point elsewhere
          std::memmove(word, meta.data() + 8 * random.below(words), 8);
          break;
        case 2:
          std::memcpy(word, &kEdges[random.below(std::size(kEdges))], 8);
          break;
        default: {
          uint64_t number;
          std::memcpy(&number, word, 8);
          number += random.below(9) - 4;
          std::memcpy(word, &number, 8);
        }
      }
    }
    refused += !survives(meta, decode);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(refused, 1000);
}

Bytes bytes_of(const Buffer& buffer) { return {buffer.data(), buffer.data() + buffer.size()}; }

TEST(MessageMutation, ADamagedHelloIsReadOrCorrupt) {
  wire::Hello hello;
  hello.name = "worker";
  hello.generation = "generation";
  hello.host = "host";
  hello.authentication = "secret";
  for (uint64_t i = 0; i < 5; ++i) hello.functions.push_back({i, "function", "(int)"});
  mutate(bytes_of(wire::encode(hello)), [](auto meta) { wire::decode_hello(meta); });
}

TEST(MessageMutation, ADamagedErrorIsReadOrCorrupt) {
  Error error(Code::kRemote, "what happened");
  error.worker("ps").operation("call").advice("do this").remote_type("std::logic_error").trail("a");
  mutate(bytes_of(wire::encode(error)), [](auto meta) { wire::decode_error(meta); });
}

}  // namespace
}  // namespace farspan::testing
