// Damaged messages end as an Error, never as a crash, a hang or a read outside of their bytes (run
// it under AddressSanitizer). Deterministic: the damage is systematic, or random from a fixed seed.
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <random>

#include "c10d/values/message_fixture.h"
#include "support/sanitizers.h"

namespace farspan::testing {

struct Step {
  std::string name;
  std::vector<int32_t> counts;
  std::optional<double> loss;
  at::Tensor gradient;
};
FARSPAN_STRUCT(Step, name, counts, loss, gradient);

namespace {

using Tables = std::map<std::string, std::vector<std::pair<int64_t, std::string>>>;
using Choice = std::variant<int, std::string, std::vector<at::Tensor>>;

// Every byte is looked at, so that AddressSanitizer sees those that are not there.
uint64_t touch(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (tensor.layout() != at::kStrided) {
    if (tensor.numel() < 10'000) touch(tensor.detach().to_dense());
    return 0;
  }
  uint64_t sum = static_cast<uint64_t>(tensor.numel());
  const auto* bytes = static_cast<const uint8_t*>(tensor.const_data_ptr());
  for (size_t i = 0; i < tensor.nbytes(); ++i) sum += bytes[i];
  return sum;
}

// One kind of message: how it is written, and what is done with it when it arrives.
struct Sample {
  Message message;
  void (*read)(const Message&);
};

Sample nested_values() {
  const Step step{"s", {1, 2, 3}, 0.5, at::ones({2, 2})};
  return {to_message(std::vector<Step>{step, step}, Tables{{"a", {{1, "x"}, {2, "y"}}}, {"b", {}}},
                     Choice("text"), std::optional<bool>(true),
                     std::tuple<uint8_t, float, std::array<std::string, 2>>{7, 1.5f, {"p", "q"}}),
          [](const Message& message) {
            for (const Step& each : from_message<std::vector<Step>>(message, 0)) {
              touch(each.gradient);
            }
            from_message<Tables>(message, 1);
            from_message<Choice>(message, 2);
            from_message<std::optional<bool>>(message, 3);
            from_message<std::tuple<uint8_t, float, std::array<std::string, 2>>>(message, 4);
          }};
}

Sample bulk_values() {
  return {to_message(std::string(20'000, 'x'), std::vector<double>(3000, 1.0), at::rand({10'000}),
                     at::rand({100, 60}).t()),
          [](const Message& message) {
            from_message<std::string>(message, 0);
            from_message<std::vector<double>>(message, 1);
            touch(from_message<at::Tensor>(message, 2));
            touch(from_message<at::Tensor>(message, 3));
          }};
}

Sample dense_tensors() {
  return {to_message(std::vector<at::Tensor>{
              at::ones({1}), at::rand({3, 4}).t(), at::zeros({0, 3}), at::scalar_tensor(2),
              at::rand({2, 3}, at::kComplexDouble).requires_grad_(), at::Tensor(),
              at::ones({2, 3, 4, 5}, at::kBool).contiguous(at::MemoryFormat::ChannelsLast)}),
          [](const Message& message) {
            for (const at::Tensor& each : from_message<std::vector<at::Tensor>>(message)) {
              touch(each);
            }
          }};
}

Sample sparse_tensors() {
  const at::Tensor eye = at::eye(4) + at::eye(4).roll(1, 0);
  const at::Tensor hybrid = at::sparse_coo_tensor(at::tensor({2, 0, 2}, at::kLong).reshape({1, 3}),
                                                  at::rand({3, 2}), {4, 2});
  return {to_message(std::vector<at::Tensor>{
              eye.to_sparse(), hybrid, eye.to_sparse(at::kSparseCsr), eye.to_sparse(at::kSparseCsc),
              eye.to_sparse(at::kSparseBsr, at::IntArrayRef({2, 2})),
              eye.to_sparse(at::kSparseBsc, at::IntArrayRef({2, 2}))}),
          [](const Message& message) {
            for (const at::Tensor& each : from_message<std::vector<at::Tensor>>(message)) {
              touch(each);
            }
          }};
}

class Mutation : public ::testing::TestWithParam<Sample (*)()> {
 protected:
  // Tiny tensors: LibTorch's threads would do nothing but wait for each other.
  static void SetUpTestSuite() { at::set_num_threads(1); }

  // True when the message could still be read.
  bool survives(const Message& message) {
    try {
      sample_.read(message);
      return true;
    } catch (const Error& error) {
      if (error.code() != Code::kCorrupt && error.code() != Code::kInvalidArgument) {
        ADD_FAILURE() << "unexpected: " << error.what();
      }
      return false;
    }
  }

  Message copy() const {
    Message message{aligned_copy(sample_.message.meta.span()), {}};
    for (const Buffer& each : sample_.message.segments) {
      message.segments.push_back(aligned_copy(each.span()));
    }
    return message;
  }

  const Sample sample_ = GetParam()();
};

TEST_P(Mutation, TheWholeMessageCanBeRead) { EXPECT_TRUE(survives(copy())); }

TEST_P(Mutation, EveryBitOfTheMetaMayFlip) {
  Message message = copy();
  int refused = 0;
  for (size_t i = 0; i < message.meta.size(); ++i) {
    std::byte& byte = message.meta.data()[i];
    const std::byte original = byte;
    for (int bit = 0; bit < 8; ++bit) {
      byte = original ^ std::byte(1 << bit);
      refused += !survives(message);
    }
    for (const auto value : {std::byte{0}, std::byte{0xff}, std::byte{0x7f}}) {
      byte = value;
      refused += !survives(message);
    }
    byte = original;
  }
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(survives(message));
}

TEST_P(Mutation, TheMetaMayEndAnywhere) {
  for (size_t size = 0; size < sample_.message.meta.size(); ++size) {
    Message message = copy();
    message.meta = aligned_copy(sample_.message.meta.span().first(size));
    // What is cut off may be a text's last bytes only, which are read as absent, never as garbage.
    survives(message);
  }
  Message message = copy();
  message.meta = Buffer();
  EXPECT_FALSE(survives(message));
}

TEST_P(Mutation, SegmentsMayHaveAnyLengthOrBeMissing) {
  for (size_t i = 0; i < sample_.message.segments.size(); ++i) {
    const auto original = sample_.message.segments[i].span();
    std::vector<std::byte> longer(original.begin(), original.end());
    longer.resize(original.size() + 8);
    for (const size_t size : {size_t{0}, original.size() / 2, original.size() - 1,
                              original.size() + 1, original.size() + 8}) {
      Message message = copy();
      message.segments[i] = aligned_copy(std::span(longer).first(size));
      survives(message);
    }
    Message message = copy();
    message.segments.erase(message.segments.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(survives(message));
  }
}

TEST_P(Mutation, EveryByteOfSmallSegmentsMayChange) {
  Message message = copy();
  for (const Buffer& segment : message.segments) {
    if (segment.size() > 1000) continue;
    for (std::byte& byte : segment.span()) {
      const std::byte original = byte;
      for (const auto value : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
        byte = original ^ value;
        survives(message);
      }
      byte = original;
    }
  }
  EXPECT_TRUE(survives(message));
}

TEST_P(Mutation, RandomDamageIsSurvived) {
  std::mt19937_64 random(20'240'611);
  const size_t meta_size = sample_.message.meta.size();
  for (int round = 0; round < repetitions(25'000); ++round) {
    Message message = copy();
    const int changes = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < changes; ++i) {
      const size_t word = random() % (meta_size / 8);
      switch (random() % 4) {
        case 0:  // another byte
          message.meta.data()[random() % meta_size] = static_cast<std::byte>(random());
          break;
        case 1: {  // another word from the same message: pointers that point elsewhere
          const size_t other = random() % (meta_size / 8);
          std::memcpy(message.meta.data() + 8 * word, message.meta.data() + 8 * other, 8);
          break;
        }
        case 2: {  // a number at the edge of its type
          const uint64_t edges[] = {0, ~0ull, 1ull << 63, ~0ull >> 1, 1ull << 31, 1ull << 62};
          std::memcpy(message.meta.data() + 8 * word, &edges[random() % 6], 8);
          break;
        }
        default: {  // a small change of a number
          uint64_t number;
          std::memcpy(&number, message.meta.data() + 8 * word, 8);
          number += random() % 9 - 4;
          std::memcpy(message.meta.data() + 8 * word, &number, 8);
        }
      }
    }
    survives(message);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

std::string name_of(const ::testing::TestParamInfo<Sample (*)()>& sample) {
  constexpr const char* kNames[] = {"NestedValues", "BulkValues", "DenseTensors", "SparseTensors"};
  return kNames[sample.index];
}

INSTANTIATE_TEST_SUITE_P(Messages, Mutation,
                         ::testing::Values(&nested_values, &bulk_values, &dense_tensors,
                                           &sparse_tensors),
                         name_of);

}  // namespace
}  // namespace farspan::testing
