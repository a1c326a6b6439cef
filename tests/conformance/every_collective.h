// Every operation of collectives.h and point_to_point.h once, for comparisons of what they give on
// different devices and by different backends.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/tensor_block.h>

#include "c10d/group/allowed_reductions.h"
#include "conformance/collective_suite.h"
#include "conformance/combinations.h"
#include "conformance/expected.h"

namespace farspan::testing {

using at::Tensor;
using Tensors = std::vector<at::Tensor>;

inline constexpr int64_t kCount = 12'000;  // a multiple of the ranks

// A rank's tensors and its streams: on a device, written late, or the processor's. Each rank has a
// device of its own, since ranks of one process would wait for themselves on a shared stream.
struct CollectivePlace {
  at::Device device;
  int ranks;

  Tensor input(int rank, int64_t salt = 0) const {
    const Tensor x = input_of(rank, kCount, at::kDouble, salt).to(device);
    return x + x;
  }
  Tensors inputs(int rank) const {
    Tensors all;
    for (int salt = 0; salt < ranks; ++salt) all.push_back(input(rank, salt));
    return all;
  }
  Tensor empty(int64_t count = kCount) const {
    return at::empty({count}, at::TensorOptions(at::kDouble).device(device));
  }
  Tensors list(int64_t count = kCount) const {
    Tensors all;
    for (int i = 0; i < ranks; ++i) all.push_back(empty(count));
    return all;
  }
};

// Results that are used at once, on the same stream.
inline void note(Tensors& results, const Tensor& x) { results.push_back((x + x).cpu()); }
inline void note(Tensors& results, const Tensors& all) {
  for (const Tensor& x : all) note(results, x);
}

// Of tensors that are not plain: their layouts, types and sizes, and memory that they share.
inline void note_odd_ones(Tensors& results, const CollectivePlace& place, int rank) {
  const int ranks = place.ranks;
  const auto sized = [&](int64_t count, int64_t salt, at::ScalarType type = at::kDouble) {
    return input_of(rank, count, type, salt).to(place.device);
  };
  for (const at::ScalarType type : {at::kBool, at::kFloat, at::kInt, at::kComplexDouble}) {
    const Tensor t = sized(100, 1, type);
    dist::all_reduce(t);
    note(results, t);
  }
  for (const dist::ReduceOp op : {dist::ReduceOp::kAvg, dist::ReduceOp::kMin}) {
    const Tensor t = sized(100, 2);
    dist::all_reduce(t, {.op = op});
    note(results, t);
  }
  const Tensor columns = sized(60, 3).view({6, 10}).t();
  dist::all_reduce(columns);
  note(results, columns.contiguous());
  const Tensor none = sized(0, 4), single = sized(1, 5).view({});
  dist::all_reduce(none);
  dist::all_reduce(single);
  note(results, {none, single});

  Tensors unequal, own_place;
  for (int other = 0; other < ranks; ++other) {
    unequal.push_back(place.empty(10 * other));
    own_place.push_back(place.empty(20));
  }
  dist::all_gather(unequal, sized(10 * rank, 6));
  note(results, unequal);
  own_place[static_cast<size_t>(rank)] = sized(20, 7);
  dist::all_gather(own_place, own_place[static_cast<size_t>(rank)]);
  note(results, own_place);
  for (int other = 0; other < ranks; ++other) {
    unequal[static_cast<size_t>(other)] = sized(10 * other, 8 + other);
  }
  const Tensor sum = place.empty(10 * rank);
  dist::reduce_scatter(sum, unequal);
  note(results, sum);
  // What is read is also written: in the same places, and in others.
  const Tensor same = sized(10 * ranks, 9), shifted = sized(10 * ranks + 10, 10);
  dist::all_to_all_single(same, same);
  note(results, same);
  const dist::Work work = dist::all_to_all_single_async(shifted.narrow(0, 0, 10 * ranks),
                                                        shifted.narrow(0, 10, 10 * ranks));
  work.wait();
  note(results, shifted);
}

// Those of point_to_point.h that results_of() does not have: several at once, from anyone, to
// itself, by threads that wait, and of tensors that do not lie in order.
inline void note_messages(Tensors& results, const CollectivePlace& place, int rank) {
  using Kind = dist::P2POp::Kind;
  const int ranks = place.ranks, next = (rank + 1) % ranks;
  const auto sized = [&](int64_t count, int64_t salt) {
    return input_of(rank, count, at::kDouble, salt).to(place.device);
  };
  std::vector<dist::P2POp> batch;
  for (int peer = 0; peer < ranks; ++peer) {
    batch.push_back({Kind::kSend, sized(10 * rank + peer, peer), peer});
    batch.push_back({Kind::kRecv, place.empty(10 * peer + rank), peer});
    batch.push_back({Kind::kSend, sized(20, 10 + peer), peer, {.tag = 1}});
    batch.push_back({Kind::kRecv, place.empty(20), peer, {.tag = 1}});
  }
  for (const dist::Work& work : dist::batch_isend_irecv(batch)) work.wait();
  for (const dist::P2POp& one : batch) note(results, one.tensor);

  // Blocking, along the ranks and back.
  const Tensor whole = sized(60, 20).view({6, 10}), came = place.empty(60).zero_().view({6, 10});
  if (rank > 0) dist::recv(came.t(), rank - 1, {.tag = 2});
  if (rank < ranks - 1) dist::send(whole.t(), rank + 1, {.tag = 2});
  note(results, came.contiguous());
  const Tensor odd = place.empty(120).zero_().view({6, 20});
  const dist::Work columns = dist::irecv(odd.slice(1, 0, 20, 2), (rank + ranks - 1) % ranks);
  const dist::Work sent = dist::isend(whole, next);
  columns.wait();
  sent.wait();
  note(results, odd);

  if (rank == 0) {
    Tensors by_rank(static_cast<size_t>(ranks));
    for (int i = 1; i < ranks; ++i) {
      const Tensor one = place.empty(30);
      by_rank[static_cast<size_t>(dist::recv(one, dist::kAnySource, {.tag = 3}))] = one;
    }
    note(results, Tensors(by_rank.begin() + 1, by_rank.end()));
  } else {
    dist::send(sized(30, 30), 0, {.tag = 3});
  }

  // A small one to itself ends before its receive, and what is done with the tensor then is not
  // seen.
  const Tensor own = sized(40, 40), again = place.empty(40);
  dist::send(own, rank, {.tag = 4});
  own.zero_();
  dist::recv(again, dist::kAnySource, {.tag = 4});
  note(results, {own, again});
}

// All operations of collectives.h and point_to_point.h, one after the other.
inline Tensors results_of(const CollectivePlace& place, int rank) {
  Tensors results;
  const int ranks = place.ranks, root = ranks - 1, other = ranks / 2;
  const auto x = [&](int64_t salt) { return place.input(rank, salt); };
  Tensor t = x(0);
  dist::broadcast(t, other);
  note(results, t);
  dist::all_reduce(t = x(1));
  note(results, t);
  dist::all_reduce(t = x(2), {.op = dist::ReduceOp::premul_sum(3)});
  note(results, t);
  dist::reduce(t = x(3), root);
  if (rank == root) note(results, t);
  Tensors list = place.list();
  dist::all_gather(list, x(4));
  note(results, list);
  Tensor whole = place.empty(ranks * kCount);
  dist::all_gather_into_tensor(whole, x(5));
  note(results, whole);
  dist::gather(x(6), rank == 0 ? list : Tensors(), 0);
  if (rank == 0) note(results, list);
  dist::scatter(t = place.empty(), rank == other ? place.inputs(rank) : Tensors(), other);
  note(results, t);
  dist::reduce_scatter(t = place.empty(), place.inputs(rank));
  note(results, t);
  dist::reduce_scatter_tensor(t = place.empty(kCount / ranks), x(7));
  note(results, t);
  dist::all_to_all(list, place.inputs(rank));
  note(results, list);
  dist::all_to_all_single(t = place.empty(), x(8));
  note(results, t);
  list = place.inputs(rank);
  dist::all_reduce_coalesced(list);
  note(results, list);
  Tensors wholes{place.empty(ranks * kCount), place.empty(ranks * kCount)};
  dist::all_gather_into_tensor_coalesced(wholes, {x(9), x(10)});
  note(results, wholes);
  Tensors parts{place.empty(kCount / ranks), place.empty(kCount / ranks)};
  dist::reduce_scatter_tensor_coalesced(parts, {x(11), x(12)});
  note(results, parts);
  const dist::Work sent = dist::isend(x(13), (rank + 1) % ranks);
  dist::recv(t = place.empty(), (rank + ranks - 1) % ranks);
  sent.wait();
  note(results, t);
  std::vector<dist::Work> works;
  list = place.inputs(rank);
  for (const Tensor& one : list) works.push_back(dist::all_reduce_async(one));
  for (const dist::Work& work : works) work.wait();
  note(results, list);
  note_odd_ones(results, place, rank);
  note_messages(results, place, rank);
  return results;
}

// By a table of the tests, and not by what the product says.
inline bool nccl_reduces(dist::ReduceOp::Kind op, at::ScalarType type) {
  using dist::ReduceOp;
  const bool is_of_bits = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  const bool is_type = type != at::kShort && type != at::kUInt16 && type != at::kComplexHalf;
  return is_type && !is_of_bits && !(op == ReduceOp::kProduct && c10::isComplexType(type));
}

// Elements that tell types and operations apart: unsigned ones wrap, so that the greatest would be
// below zero as signed ones; of bools all ranks' are true, or some, or none.
inline Tensor telling_input_of(int rank, int64_t count, at::ScalarType type) {
  if (c10::isComplexType(type)) return input_of(rank, count, type);
  const Tensor numbers = input_of(rank, count, at::kLong);
  if (type != at::kBool) return numbers.to(type);
  const Tensor last = at::arange(count, at::kLong) >= count / 2;
  return (numbers > -2).logical_and(last);
}

// What NCCL has of each operation and type gives what it gives of the processor's tensors; the
// others are refused by name.
inline void expect_reductions_of_nccl(const CollectivePlace& place, int rank) {
  constexpr int64_t kElements = 96;  // a multiple of the ranks
  for (const at::ScalarType type : kTypes) {
    for (const dist::ReduceOp::Kind op : kOps) {
      const Tensor here = telling_input_of(rank, kElements, type), there = here.to(place.device);
      const auto wire_type = dist::dtype_of(here);
      if (!dist::testing::is_allowed(op, wire_type)) continue;
      const std::string what =
          std::string(dist::name_of(op)) + " of " + std::string(dist::name_of(wire_type));
      const dist::ReduceOptions options = {.op = op_of(op, rank)};
      if (!nccl_reduces(op, type)) {
        const Error error = error_of([&] { dist::all_reduce(there, options); });
        EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
        EXPECT_THAT(error.what(), ::testing::HasSubstr("NCCL has no " + what));
        continue;
      }
      // The simulated devices multiply no other types by a factor.
      const bool is_multiplied =
          type == at::kFloat || type == at::kDouble || !place.device.is_privateuseone();
      if (op == dist::ReduceOp::kPremulSum && !is_multiplied) continue;
      const auto reduced_both_ways = [&](const Tensor& x) {
        const Tensor part = at::empty({kElements / place.ranks}, x.options());
        dist::reduce_scatter_tensor(part, x, options);
        dist::all_reduce(x, options);
        return Tensors{part.cpu(), x.cpu()};
      };
      const Tensors wanted = reduced_both_ways(here), got = reduced_both_ways(there);
      EXPECT_TRUE(same(got[0], wanted[0])) << "reduce_scatter " << what;
      EXPECT_TRUE(same(got[1], wanted[1])) << "all_reduce " << what;
    }
  }
}

}  // namespace farspan::testing
