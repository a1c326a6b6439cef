// The rule under test: c10d/group/collectives.h, for sizes at which a backend cuts what it moves.
#include <farspan/c10d/group/point_to_point.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;

// Tensors that 32 bits do not count, in bytes or in elements; 14.2 GiB at a time.
class MoreThanTwoGibibytes {
 public:
  static constexpr int64_t kCount = (int64_t{1} << 31) + 4099;

  explicit MoreThanTwoGibibytes(int rank) : rank_(rank) {}

  void run() {
    in_place();
    of_blocks();
    of_parts();
  }

 private:
  // Its last elements are others, so that they are not taken for those before.
  static void fill(const Tensor& tensor, int rank) {
    tensor.fill_(rank + 1).narrow(0, tensor.numel() - 7, 7).fill_(10 * (rank + 1));
  }
  static Tensor filled(int64_t count, int rank) {
    const Tensor tensor = at::empty({count}, at::kChar);
    fill(tensor, rank);
    return tensor;
  }
  static bool is_all(const Tensor& tensor, int value) {
    for (const Tensor& piece : tensor.split(int64_t{64} << 20)) {
      if (!piece.eq(value).all().item<bool>()) return false;
    }
    return true;
  }
  // What fill() leaves of this rank, or of a sum of ranks.
  static bool holds(const Tensor& tensor, int most) {
    const int64_t begin = tensor.numel() - 7;
    return is_all(tensor.narrow(0, 0, begin), most) &&
           is_all(tensor.narrow(0, begin, 7), 10 * most);
  }
  static Tensor space(int64_t count) { return at::zeros({count}, at::kChar); }

  void in_place() const {
    const Tensor x = filled(kCount, rank_);
    dist::all_reduce(x);
    EXPECT_TRUE(holds(x, 3)) << "all_reduce";
    fill(x, rank_);
    dist::all_reduce_coalesced({x.narrow(0, 0, 1000), x.narrow(0, 1000, kCount - 1000)});
    EXPECT_TRUE(holds(x, 3)) << "all_reduce_coalesced";
    fill(x, rank_);
    dist::reduce(x, 1);
    EXPECT_TRUE(holds(x, rank_ == 1 ? 3 : 1)) << "reduce";
    fill(x, rank_);
    dist::broadcast(x, 1);
    EXPECT_TRUE(holds(x, 2)) << "broadcast";
    fill(x, rank_);
    if (rank_ == 0) {
      dist::send(x, 1);
    } else {
      dist::recv(x, 0);
      EXPECT_TRUE(holds(x, 1)) << "send";
    }
  }

  // A block of so many elements, and blocks that are so many together.
  void of_blocks() const {
    const Tensor x = filled(kCount, rank_), nothing = space(0);
    std::vector<Tensor> list;
    if (rank_ == 1) list = {space(kCount), space(kCount)};
    dist::gather(x, list, 1);
    for (size_t other = 0; other < list.size(); ++other) {
      EXPECT_TRUE(holds(list[other], static_cast<int>(other) + 1)) << "gather";
    }
    list = {space(kCount), nothing};
    dist::all_gather(list, rank_ == 0 ? x : nothing);
    EXPECT_TRUE(holds(list[0], 1)) << "all_gather";
    list.clear();
    const Tensor half = x.narrow(0, 0, kCount / 2), whole = space(kCount / 2 * 2);
    dist::all_gather_into_tensor(whole, half);
    EXPECT_TRUE(is_all(whole.narrow(0, 0, kCount / 2), 1)) << "all_gather_into_tensor";
    EXPECT_TRUE(is_all(whole.narrow(0, kCount / 2, kCount / 2), 2)) << "all_gather_into_tensor";
    whole.zero_();
    dist::all_gather_into_tensor_coalesced({whole}, {half});
    EXPECT_TRUE(is_all(whole.narrow(0, 0, kCount / 2), 1)) << "all_gather_into_tensor_coalesced";
    EXPECT_TRUE(is_all(whole.narrow(0, kCount / 2, kCount / 2), 2))
        << "all_gather_into_tensor_coalesced";
  }

  void of_parts() const {
    const Tensor x = filled(kCount, rank_), y = space(kCount), nothing = space(0);
    const std::vector<Tensor> both = {x, x};
    dist::scatter(y, rank_ == 0 ? both : std::vector<Tensor>(), 0);
    EXPECT_TRUE(holds(y, 1)) << "scatter";
    dist::reduce_scatter(y, both);
    EXPECT_TRUE(holds(y, 3)) << "reduce_scatter";
    const Tensor half = y.narrow(0, 0, kCount / 2).zero_();
    dist::reduce_scatter_tensor(half, x.narrow(0, 0, kCount / 2 * 2));
    EXPECT_TRUE(is_all(half.narrow(0, 0, kCount / 2 - 7), 3)) << "reduce_scatter_tensor";
    half.zero_();
    dist::reduce_scatter_tensor_coalesced({half}, {x.narrow(0, 0, kCount / 2 * 2)});
    EXPECT_TRUE(is_all(half.narrow(0, 0, kCount / 2 - 7), 3)) << "reduce_scatter_tensor_coalesced";
    // To the other rank, and nothing to oneself.
    const auto other = static_cast<size_t>(1 - rank_);
    std::vector<Tensor> in(2, nothing), out = {space(0), space(0)};
    in[other] = x;
    out[other] = y;
    dist::all_to_all(out, in);
    EXPECT_TRUE(holds(y, 2 - rank_)) << "all_to_all";
    y.zero_();
    std::vector<int64_t> splits(2);
    splits[other] = kCount;
    dist::all_to_all_single(y, x, splits, splits);
    EXPECT_TRUE(holds(y, 2 - rank_)) << "all_to_all_single";
  }

  const int rank_;
};

TEST_P(CollectiveSuite, MoreThanTwoGibibytes) {
  if (!all_combinations()) GTEST_SKIP() << "it needs 15 GiB: set FARSPAN_ALL_COMBINATIONS";
  on_each(
      2, [](int rank) { MoreThanTwoGibibytes(rank).run(); }, std::chrono::seconds(300));
}

}  // namespace
}  // namespace farspan::testing
