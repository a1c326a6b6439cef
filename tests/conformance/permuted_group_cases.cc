// The rule under test: c10d/group/README.md: ranks in arguments count in the default group, and
// what a group makes is in the order of its own ranks. Here the two differ.
#include <algorithm>

#include "conformance/combinations.h"
#include "conformance/expected.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

// One rank of a group, and what it checks there.
class Member {
 public:
  Member(std::vector<int> ranks, int rank, int64_t count)
      : ranks_(std::move(ranks)),
        group_(dist::new_group(ranks_)),
        rank_(rank),
        place_(group_->rank()),
        count_(count) {}

  void moves() const {
    for (const int root : ranks_) {
      const Tensor x = of(rank_);
      dist::broadcast(x, root, here());
      EXPECT_TRUE(at::equal(x, of(root))) << "broadcast from " << root;
      std::vector<Tensor> list = root == rank_ ? places() : std::vector<Tensor>();
      dist::gather(of(rank_), list, root, here());
      EXPECT_TRUE(root != rank_ || at::equal(at::cat(list), all())) << "gather";
      list.clear();
      for (const int rank : ranks_) list.push_back(of(root, rank));
      dist::scatter(x, root == rank_ ? list : std::vector<Tensor>(), root, here());
      EXPECT_TRUE(at::equal(x, of(root, rank_))) << "scatter from " << root;
    }
    const std::vector<Tensor> list = places();
    dist::all_gather(list, of(rank_), here());
    EXPECT_TRUE(at::equal(at::cat(list), all())) << "all_gather";
    const Tensor whole = at::zeros_like(all()), more = at::zeros_like(all());
    dist::all_gather_into_tensor(whole, of(rank_), here());
    EXPECT_TRUE(at::equal(whole, all())) << "all_gather_into_tensor";
    dist::all_gather_into_tensor_coalesced({more}, {of(rank_)}, here());
    EXPECT_TRUE(at::equal(more, all())) << "all_gather_into_tensor_coalesced";
    std::vector<Tensor> in, want;
    for (const int rank : ranks_) {
      in.push_back(of(rank_, rank));
      want.push_back(of(rank, rank_));
    }
    dist::all_to_all(list, in, here());
    EXPECT_TRUE(at::equal(at::cat(list), at::cat(want))) << "all_to_all";
    dist::all_to_all_single(whole, at::cat(in), {}, {}, here());
    EXPECT_TRUE(at::equal(whole, at::cat(want))) << "all_to_all_single";
  }

  void reductions() const {
    for (const ReduceOp::Kind op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kPremulSum}) {
      const dist::ReduceOptions options = {.op = op_of(op, place_), .group = group_};
      const Tensor want = expected(op, inputs_of_all());
      for (const int root : ranks_) {
        const Tensor x = of(rank_);
        dist::reduce(x, root, options);
        EXPECT_TRUE(at::equal(x, root == rank_ ? want : of(rank_))) << "reduce to " << root;
      }
      const Tensor x = of(rank_), y = of(rank_);
      dist::all_reduce(x, options);
      EXPECT_TRUE(at::equal(x, want)) << "all_reduce";
      dist::all_reduce_coalesced({y}, options);
      EXPECT_TRUE(at::equal(y, want)) << "all_reduce_coalesced";
      scattered(op, options);
    }
    const Tensor sparse = at::diag(of(rank_).narrow(0, 0, 5)).to_sparse();
    dist::all_reduce(sparse, {.group = group_});
    Tensor sum = at::zeros({5, 5});
    for (const int rank : ranks_) sum += at::diag(of(rank).narrow(0, 0, 5));
    EXPECT_TRUE(at::equal(sparse.to_dense(), sum)) << "sparse";
  }

  // Nobody else notices.
  void who_is_no_member_is_no_root() const {
    for (int root = 0; root < 4; ++root) {
      if (std::ranges::find(ranks_, root) != ranks_.end()) continue;
      const auto refused = [&](const std::function<void()>& call) {
        const Error error = error_of(call);
        EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank " + std::to_string(root)));
      };
      const Tensor x = of(rank_);
      refused([&] { dist::broadcast(x, root, here()); });
      refused([&] { dist::reduce(x, root, {.group = group_}); });
      refused([&] { dist::gather(x, {}, root, here()); });
      refused([&] { dist::scatter(x, {}, root, here()); });
    }
  }

 private:
  dist::CollectiveOptions here() const { return {.group = group_}; }
  Tensor of(int rank, int64_t salt = 0) const { return input_of(rank, count_, at::kFloat, salt); }
  std::vector<Tensor> inputs_of_all(int64_t salt = 0) const {
    std::vector<Tensor> all;
    for (const int rank : ranks_) all.push_back(of(rank, salt));
    return all;
  }
  Tensor all() const { return at::cat(inputs_of_all()); }
  std::vector<Tensor> places() const {
    std::vector<Tensor> all;
    for (size_t i = 0; i < ranks_.size(); ++i) all.push_back(at::zeros({count_}));
    return all;
  }

  void scattered(ReduceOp::Kind op, const dist::ReduceOptions& options) const {
    std::vector<Tensor> parts;
    for (const int rank : ranks_) parts.push_back(of(rank_, rank));
    const Tensor want = expected(op, inputs_of_all(rank_));
    const Tensor x = at::zeros({count_}), y = at::zeros({count_}), z = at::zeros({count_});
    dist::reduce_scatter(x, parts, options);
    EXPECT_TRUE(at::equal(x, want)) << "reduce_scatter";
    dist::reduce_scatter_tensor(y, at::cat(parts), options);
    EXPECT_TRUE(at::equal(y, want)) << "reduce_scatter_tensor";
    dist::reduce_scatter_tensor_coalesced({z}, {at::cat(parts)}, options);
    EXPECT_TRUE(at::equal(z, want)) << "reduce_scatter_tensor_coalesced";
  }

  const std::vector<int> ranks_;  // in the default group, as are all ranks here
  const dist::Group group_;
  const int rank_, place_;
  const int64_t count_;
};

TEST_P(CollectiveSuite, RanksOfPermutedGroupsCountInTheDefaultGroup) {
  on_each(4, [](int rank) {
    for (const int64_t count : {5, 70'001}) {
      // Two beside each other, and then others.
      const std::vector<std::vector<int>> turns[] = {{{3, 1}, {2, 0}}, {{2, 0, 3}}, {{1, 3, 0, 2}}};
      for (const auto& groups : turns) {
        for (const std::vector<int>& ranks : groups) {
          if (std::ranges::find(ranks, rank) == ranks.end()) continue;
          const Member member(ranks, rank, count);
          member.moves();
          member.who_is_no_member_is_no_root();
          member.reductions();
        }
      }
    }
  });
}

}  // namespace
}  // namespace farspan::testing
