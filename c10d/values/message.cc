#include <farspan/c10d/values/message.h>

#include <capnp/any.h>

#include <cstdint>
#include <string>

namespace farspan {
namespace {

// A small call takes 40 to 80 words. Cap'n Proto wants the block zeroed and leaves it so.
constexpr size_t kScratchWords = 512;

struct Scratch {
  uint64_t words[kScratchWords];
  bool in_use;
};
constinit thread_local Scratch scratch{};

capnp::ReaderOptions limits_for(size_t words) {
  capnp::ReaderOptions options;
  // Everything is read once, so this bounds how far pointers that share a target multiply it.
  options.traversalLimitInWords = 4 * uint64_t{words} + 64;
  // A struct takes three levels for each of its own: its fields, a field, a value.
  options.nestingLimit = 3 * kMaxValueDepth + 16;
  return options;
}

kj::ArrayPtr<const capnp::word> words_of(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0 ||
      reinterpret_cast<uintptr_t>(bytes.data()) % alignof(uint64_t) != 0) {
    throw Error(Code::kCorrupt, "a message of " + std::to_string(bytes.size()) +
                                    " bytes, which is not made of aligned 8-byte words");
  }
  return {reinterpret_cast<const capnp::word*>(bytes.data()), bytes.size() / sizeof(capnp::word)};
}

}  // namespace

MetaBuilder::Lease::Lease() {
  if (!scratch.in_use) {
    scratch.in_use = true;
    words_ = kj::arrayPtr(reinterpret_cast<capnp::word*>(scratch.words), kScratchWords);
  } else {
    own_ = std::make_unique<uint64_t[]>(kScratchWords);
    words_ = kj::arrayPtr(reinterpret_cast<capnp::word*>(own_.get()), kScratchWords);
  }
}

MetaBuilder::Lease::~Lease() {
  if (!own_) scratch.in_use = false;
}

MetaBuilder::MetaBuilder() : builder_(lease_.words()) {}
MetaBuilder::~MetaBuilder() = default;

std::span<const std::byte> MetaBuilder::finish() {
  auto segments = builder_.getSegmentsForOutput();
  size_t words = 0;
  for (const auto& segment : segments) words += segment.size();
  if (words > kMaxMetaBytes / sizeof(capnp::word)) {
    throw Error(Code::kInvalidArgument,
                "the values take " + std::to_string(words * sizeof(capnp::word)) +
                    " bytes to describe, the limit is " + std::to_string(kMaxMetaBytes))
        .advice("pass large data as tensors or as vectors of numbers");
  }
  if (segments.size() > 1) {
    flat_ = std::make_unique<capnp::MallocMessageBuilder>(static_cast<unsigned>(words) + 1);
    flat_->setRoot(builder_.getRoot<capnp::AnyPointer>().asReader());
    segments = flat_->getSegmentsForOutput();
    FARSPAN_ASSERT(segments.size() == 1, "a copy takes no more room than its original");
  }
  const auto bytes = segments[0].asBytes();
  return {reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()};
}

MetaReader::MetaReader(std::span<const std::byte> bytes)
    : segment_(words_of(bytes)), reader_(kj::arrayPtr(&segment_, 1), limits_for(segment_.size())) {}

namespace detail {

void throw_unreadable(const kj::Exception& failure) {
  throw Error(Code::kCorrupt,
              std::string("not a readable message: ") + failure.getDescription().cStr())
      .advice("the bytes were damaged, or the peer speaks another protocol");
}

void throw_unwritable(const kj::Exception& failure) {
  throw Error(Code::kInvalidArgument,
              std::string("too large for one message: ") + failure.getDescription().cStr())
      .advice("pass large data as tensors or as vectors of numbers");
}

}  // namespace detail
}  // namespace farspan
