#include <farspan/autograd/message_codec.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace farspan::dist_autograd {
namespace {

// Who waits for it must hear that it does not come: of no memory on a device, say.
TEST(MessageCodec, AGradientThatCannotBeMadeIsAFailureWithItsMessage) {
  const std::vector<at::Tensor> gradients{at::arange(5), at::Tensor()};
  MetaBuilder builder;
  std::vector<Buffer> segments;
  encode(builder, GradientHead{PassId{ContextId(3), 1, 7}, {}, SendId(9)}, gradients, segments);
  const auto meta = builder.finish();

  const Decoded whole = decode(meta, segments);
  EXPECT_EQ(whole.failure, nullptr);
  ASSERT_EQ(whole.gradients.size(), 2u);
  EXPECT_TRUE(at::equal(whole.gradients[0], gradients[0]));
  EXPECT_FALSE(whole.gradients[1].defined());

  const Decoded without = decode(meta, {});
  EXPECT_NE(without.failure, nullptr);
  ASSERT_TRUE(without.message && std::holds_alternative<GradientHead>(*without.message));
  EXPECT_EQ(std::get<GradientHead>(*without.message).send, SendId(9));
}

}  // namespace
}  // namespace farspan::dist_autograd
