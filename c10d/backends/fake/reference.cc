#include <farspan/c10d/backends/fake/reference.h>

#include <cstring>
#include <string>

#include <farspan/c10d/backends/kernels/reduce.h>

namespace farspan::dist::fake {
namespace {

size_t bytes_of(const Seat& seat, const Block& block) {
  return block.count * size_of(seat.call.type);
}

void copy(const Seat& seat, const Block& to, const Block& from) {
  const size_t bytes = bytes_of(seat, from);
  if (bytes > 0) std::memmove(to.data, from.data, bytes);
}

// The reduction of one part of all ranks.
std::vector<std::byte> reduced(std::span<Seat> seats, size_t part) {
  const Seat& first = seats.front();
  const Block& shape = first.in[part];
  std::vector<std::byte> result(bytes_of(first, shape));
  std::vector<const std::byte*> parts;
  for (const Seat& seat : seats) parts.push_back(seat.in[part].data);
  const bool divides = first.call.reduce() == ReduceOp::kAvg;
  kernels::reduce(first.call.type, first.call.reduce(), result.data(), parts, shape.count,
                  divides ? static_cast<int>(seats.size()) : 1);
  return result;
}

void write(const Block& to, const std::vector<std::byte>& bytes) {
  if (!bytes.empty()) std::memcpy(to.data, bytes.data(), bytes.size());
}

void all_to_all(std::span<Seat> seats, std::span<const int> ranks) {
  const auto name_of = [&](size_t rank) { return "rank " + std::to_string(ranks[rank]); };
  for (size_t from = 0; from < seats.size(); ++from) {
    for (size_t to = 0; to < seats.size(); ++to) {
      const size_t sent = seats[from].in[to].count, expected = seats[to].out[from].count;
      if (sent == expected) continue;
      throw Error(Code::kShapeMismatch, describe_parts(name_of(from), sent, name_of(to), expected));
    }
  }
  // Inputs and outputs may be the same memory: all is read before anything is written.
  std::vector<std::vector<std::byte>> copies;
  for (const Seat& seat : seats) {
    for (const Block& block : seat.in) {
      copies.emplace_back(block.data, block.data + bytes_of(seat, block));
    }
  }
  for (size_t from = 0; from < seats.size(); ++from) {
    for (size_t to = 0; to < seats.size(); ++to) {
      write(seats[to].out[from], copies[from * seats.size() + to]);
    }
  }
}

void reduce_scatter(std::span<Seat> seats) {
  std::vector<std::vector<std::byte>> results;
  for (size_t rank = 0; rank < seats.size(); ++rank) results.push_back(reduced(seats, rank));
  for (size_t rank = 0; rank < seats.size(); ++rank) write(seats[rank].out[0], results[rank]);
}

}  // namespace

void perform(std::span<Seat> seats, std::span<const int> ranks) {
  const Call& call = seats.front().call;
  const auto root = static_cast<size_t>(call.root() < 0 ? 0 : call.root());
  switch (call.signature.op) {
    case Op::kBroadcast:
      for (Seat& seat : seats) copy(seat, seat.out[0], seats[root].out[0]);
      break;
    case Op::kAllReduce: {
      const auto sum = reduced(seats, 0);
      for (Seat& seat : seats) write(seat.out[0], sum);
      break;
    }
    case Op::kReduce:
      write(seats[root].out[0], reduced(seats, 0));
      break;
    case Op::kAllGather:
    case Op::kSparseAllReduce:
      for (Seat& seat : seats) {
        for (size_t rank = 0; rank < seats.size(); ++rank) {
          copy(seat, seat.out[rank], seats[rank].in[0]);
        }
      }
      break;
    case Op::kGather:
      for (size_t rank = 0; rank < seats.size(); ++rank) {
        copy(seats[rank], seats[root].out[rank], seats[rank].in[0]);
      }
      break;
    case Op::kScatter:
      for (size_t rank = 0; rank < seats.size(); ++rank) {
        copy(seats[rank], seats[rank].out[0], seats[root].in[rank]);
      }
      break;
    case Op::kReduceScatter:
      reduce_scatter(seats);
      break;
    case Op::kAllToAll:
      all_to_all(seats, ranks);
      break;
    default:
      break;
  }
}

}  // namespace farspan::dist::fake
