#include <farspan/c10d/backends/mpi/meeting.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace farspan::dist::mpi {
namespace {

constexpr size_t kSmallBytes = size_t{8} << 10;  // what travels with the first word

template <class T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

}  // namespace

Meeting::Meeting(Hub& hub, Room& room, const Call& call)
    : hub_(hub), room_(room), call_(call), streams_(room.spec.ranks.size()) {}

Meeting::~Meeting() { hub_.finish(room_); }

void Meeting::expect(int rank, std::span<std::byte> place, Channel channel) {
  streams_[static_cast<size_t>(rank)][static_cast<size_t>(channel)].expect(place);
}

Header Meeting::header(Kind kind) const {
  Header header;
  header.group = room_.id;
  header.from = rank();
  header.kind = kind;
  return header;
}

void Meeting::check_signature(int rank, const Packet& packet) const {
  Signature signature;
  if (packet.content().size() < sizeof signature) throw Error(Code::kCorrupt, "a call without one");
  std::memcpy(&signature, packet.content().data(), sizeof signature);
  const auto differs =
      difference(room_.name_of(this->rank()), call_.signature, room_.name_of(rank), signature);
  if (differs) throw Error(Code::kShapeMismatch, *differs);
}

// Every rank looks at what all have said, so that all come to the same end.
void Meeting::check_tables(std::span<const uint64_t> own, const std::vector<Packet>& come) const {
  const auto ranks = static_cast<size_t>(size());
  std::vector<uint64_t> all(ranks * own.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::span<const std::byte> from = bytes_of(own);
    if (static_cast<int>(rank) != this->rank()) {
      const auto content = come[rank].content().subspan(sizeof(Signature));
      if (content.size() < from.size()) throw Error(Code::kCorrupt, "a call without its table");
      from = content.first(from.size());
    }
    std::memcpy(all.data() + rank * own.size(), from.data(), from.size());
  }
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      const uint64_t sent = all[from * own.size() + to];
      const uint64_t expected = all[to * own.size() + ranks + from];
      if (sent == expected) continue;
      throw Error(Code::kShapeMismatch,
                  describe_parts(room_.name_of(static_cast<int>(from)), sent,
                                 room_.name_of(static_cast<int>(to)), expected));
    }
  }
}

void Meeting::enter(const Parts& parts, std::span<const uint64_t> table) {
  const auto self = static_cast<size_t>(rank()), ranks = static_cast<size_t>(size());
  Parts small(ranks), large(ranks);
  for (size_t to = 0; to < parts.size(); ++to) {
    (parts[to].size() <= kSmallBytes ? small : large)[to] = parts[to];
  }
  std::vector<std::byte> word(sizeof(Signature) + table.size_bytes());
  std::memcpy(word.data(), &call_.signature, sizeof(Signature));
  if (!table.empty())
    std::memcpy(word.data() + sizeof(Signature), table.data(), table.size_bytes());
  hub_.locked([&](Wire& wire) {
    room_.call = call_.signature.sequence;
    if (room_.has_failed()) throw Error(*room_.failure);
    room_.streams = std::move(streams_);
    room_.ready.assign(ranks, 0);
    for (size_t to = 0; to < ranks; ++to) {
      if (to == self) continue;
      wire.send(job_rank(static_cast<int>(to)), header(Kind::kEnter), word, small[to]);
    }
  });
  std::vector<Packet> come(ranks);
  const auto is_missing = [&](int from, Wire&) {
    Packet& packet = come[static_cast<size_t>(from)];
    if (packet.memory) return false;
    auto& waiting = room_.entered[from];
    if (waiting.empty()) return true;
    packet = std::move(waiting.front());
    waiting.pop_front();
    check_signature(from, packet);
    return false;
  };
  hub_.wait(room_, call_.deadline, begun_, is_missing, false);
  if (!table.empty()) check_tables(table, come);
  hub_.locked([&](Wire&) {
    for (size_t from = 0; from < ranks; ++from) {
      if (from == self) continue;
      auto& stream = room_.streams[from][static_cast<size_t>(Channel::kInput)];
      stream.pour(come[from].content().subspan(word.size()));
    }
  });
  send(large);
}

void Meeting::send(const Parts& parts, Channel channel) {
  Parts rest = parts;
  rest[static_cast<size_t>(rank())] = {};
  const bool is_empty = std::all_of(rest.begin(), rest.end(), [](auto one) { return one.empty(); });
  if (is_empty) return;
  Header data = header(Kind::kData);
  data.channel = channel;
  hub_.wait(room_, call_.deadline, begun_, [&](int to, Wire& wire) {
    std::span<const std::byte>& left = rest[static_cast<size_t>(to)];
    while (!left.empty() && wire.under_way(job_rank(to)) < kWindowBytes) {
      const size_t count = std::min(left.size(), kPartBytes);
      wire.send(job_rank(to), data, left.first(count));
      left = left.subspan(count);
    }
    return !left.empty();
  });
}

void Meeting::await(const std::function<uint64_t(int rank)>& bytes, Channel channel) {
  hub_.wait(room_, call_.deadline, begun_, [&](int from, Wire&) {
    const auto& stream = room_.streams[static_cast<size_t>(from)][static_cast<size_t>(channel)];
    return stream.came() < bytes(from);
  });
}

void Meeting::await_all() {
  hub_.wait(room_, call_.deadline, begun_, [&](int from, Wire&) {
    const auto& streams = room_.streams[static_cast<size_t>(from)];
    return std::any_of(streams.begin(), streams.end(),
                       [](const Stream& one) { return one.came() < one.expected(); });
  });
}

void Meeting::tell_ready(uint64_t slices) {
  Header ready = header(Kind::kReady);
  ready.number = slices;
  hub_.locked([&](Wire& wire) {
    for (int to = 0; to < size(); ++to) {
      if (to != rank()) wire.send(job_rank(to), ready);
    }
  });
}

void Meeting::await_ready(uint64_t slices) {
  hub_.wait(room_, call_.deadline, begun_,
            [&](int from, Wire&) { return room_.ready[static_cast<size_t>(from)] < slices; });
}

}  // namespace farspan::dist::mpi
