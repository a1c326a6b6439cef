// The rule under test: c10d/group/reduce_op.h: a sum is formed in one order, so that every rank
// gets the same bits, each time. The inputs of other cases are whole numbers, of which any order is
// as good as another.
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

constexpr at::ScalarType kFloats[] = {at::kFloat,        at::kDouble,      at::kHalf,
                                      at::kBFloat16,     at::kComplexHalf, at::kComplexFloat,
                                      at::kComplexDouble};

// What rank `rank` has: numbers of which each sum is rounded.
Tensor random_input(int rank, int64_t count, at::ScalarType type) {
  if (c10::isComplexType(type)) {
    const Tensor parts = random_input(rank, 2 * count, c10::toRealValueType(type));
    return at::view_as_complex(parts.view({count, 2}));
  }
  const at::Generator generator = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(rank));
  return at::randn({count}, generator, at::TensorOptions(at::kFloat)).to(type).div_(3);
}

// None of them is a number of 16 bits.
double factor_of_its_own(int rank) { return 1.0 / (2 * rank + 3); }

Tensor reals(const Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}
Tensor bits_of(const Tensor& tensor) { return reals(tensor).contiguous().view(at::kByte); }

TEST_P(CollectiveSuite, EveryRankGetsTheSameBitsEachTime) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t count : {1, 4097, 40'000, 1'000'000}) {
        for (const at::ScalarType type : kFloats) {
          const bool is_slow = count == 1'000'000 ? type != at::kFloat || ranks != 3
                                                  : count != 40'000 && c10::isComplexType(type);
          if (is_slow && !all_combinations()) continue;
          const Tensor input = random_input(rank, count, type);
          for (const ReduceOp op :
               {ReduceOp(ReduceOp::kSum), ReduceOp(ReduceOp::kAvg), ReduceOp(ReduceOp::kProduct),
                ReduceOp::premul_sum(factor_of_its_own(rank))}) {
            const Tensor once = input.clone(), again = input.clone();
            dist::all_reduce(once, {.op = op});
            dist::all_reduce(again, {.op = op});
            const Tensor first = bits_of(once).clone();
            dist::broadcast(first, 0);
            EXPECT_TRUE(at::equal(bits_of(once), first))
                << dist::name_of(op.kind) << " of " << count << " " << c10::toString(type);
            EXPECT_TRUE(at::equal(bits_of(once), bits_of(again)))
                << dist::name_of(op.kind) << " of " << count << " " << c10::toString(type)
                << ", again";
          }
        }
      }
    });
  }
}

// Else the case above could not fail.
TEST(RandomInputs, AnotherOrderGivesOtherBits) {
  for (const at::ScalarType type : kFloats) {
    const Tensor a = reals(random_input(0, 4097, type)), b = reals(random_input(1, 4097, type));
    const Tensor c = reals(random_input(2, 4097, type));
    EXPECT_FALSE(at::equal(bits_of(a + b + c), bits_of(c + b + a))) << c10::toString(type);
  }
}

// The oracle: sums in float32 where elements have 16 bits, host by host and then of all hosts, each
// rounded at its end.
class SumsInOrder {
 public:
  SumsInOrder(ReduceOp::Kind op, int ranks, const std::function<std::string(int rank)>& host_of)
      : op_(op), ranks_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string host = host_of(rank);
      const auto found = std::ranges::find(hosts_, host, [](const auto& one) { return one.first; });
      if (found == hosts_.end()) {
        hosts_.push_back({host, {rank}});
      } else {
        found->second.push_back(rank);
      }
    }
  }

  Tensor of(int64_t count, at::ScalarType type) const {
    std::vector<Tensor> sums;
    for (const auto& [host, ranks] : hosts_) {
      std::vector<Tensor> terms;
      for (const int rank : ranks) terms.push_back(term_of(rank, count, type));
      sums.push_back(sum(terms, hosts_.size() == 1));
    }
    const Tensor all = hosts_.size() == 1 ? sums.front() : sum(sums, true);
    return c10::isComplexType(type) ? at::view_as_complex(all) : all;
  }

 private:
  static Tensor wide(const Tensor& tensor) {
    return tensor.element_size() == 2 ? tensor.to(at::kFloat) : tensor;
  }
  // A product is rounded before it is added.
  Tensor term_of(int rank, int64_t count, at::ScalarType type) const {
    const Tensor own = reals(random_input(rank, count, type));
    if (op_ != ReduceOp::kPremulSum) return own;
    return (wide(own) * factor_of_its_own(rank)).to(own.scalar_type());
  }
  Tensor sum(const std::vector<Tensor>& terms, bool is_last) const {
    Tensor total = wide(terms.front());
    for (size_t i = 1; i < terms.size(); ++i) total = total + wide(terms[i]);
    if (is_last && op_ == ReduceOp::kAvg) total = total / at::full({}, ranks_, total.options());
    return total.to(terms.front().scalar_type());
  }

  const ReduceOp::Kind op_;
  const int ranks_;
  std::vector<std::pair<std::string, std::vector<int>>> hosts_;  // in the order of first ranks
};

// Calls `body` with each sum, size and type, and the oracle for it.
void for_sums(
    int ranks, int rank, const BackendKind& kind,
    const std::function<void(const ReduceOp&, const Tensor& input, const Tensor& want)>& body) {
  for (const ReduceOp op : {ReduceOp(ReduceOp::kSum), ReduceOp(ReduceOp::kAvg),
                            ReduceOp::premul_sum(factor_of_its_own(rank))}) {
    const SumsInOrder sums(op.kind, ranks, kind.host_of);
    for (const at::ScalarType type : kFloats) {
      for (const int64_t part : {1, 9001}) {
        const int64_t count = part * ranks;
        SCOPED_TRACE(std::string(dist::name_of(op.kind)) + " of " + std::to_string(count) + " " +
                     c10::toString(type) + " over " + std::to_string(ranks) + " ranks, at rank " +
                     std::to_string(rank));
        body(op, random_input(rank, count, type), sums.of(count, type));
      }
    }
  }
}

TEST_P(CollectiveSuite, SumsAreRoundedOnceInEachStepInTheOrderOfTheRanksWhateverTheFactors) {
  for (const int ranks : {2, 5}) {  // on mixed hosts some share one
    on_each(ranks, [ranks](int rank) {
      const auto expect = [](const Tensor& got, const Tensor& want, const char* operation) {
        EXPECT_TRUE(at::equal(bits_of(got), bits_of(want))) << operation;
      };
      for_sums(ranks, rank, GetParam(),
               [&](const ReduceOp& op, const Tensor& input, const Tensor& want) {
                 const int64_t part = input.numel() / ranks;
                 const Tensor own_want = want.narrow(0, rank * part, part);
                 const int root = static_cast<int>(part) % ranks;
                 Tensor x = input.clone();
                 dist::all_reduce(x, {.op = op});
                 expect(x, want, "all_reduce");
                 x = input.clone();
                 dist::all_reduce_coalesced({x}, {.op = op});
                 expect(x, want, "all_reduce_coalesced");
                 x = input.clone();
                 dist::reduce(x, root, {.op = op});
                 expect(x, rank == root ? want : input, "reduce");
                 x = at::zeros_like(own_want);
                 dist::reduce_scatter_tensor(x, input, {.op = op});
                 expect(x, own_want, "reduce_scatter_tensor");
                 x = at::zeros_like(own_want);
                 dist::reduce_scatter(x, input.split(part), {.op = op});
                 expect(x, own_want, "reduce_scatter");
                 x = at::zeros_like(own_want);
                 dist::reduce_scatter_tensor_coalesced({x}, {input}, {.op = op});
                 expect(x, own_want, "reduce_scatter_tensor_coalesced");
               });
    });
  }
}

}  // namespace
}  // namespace farspan::testing
