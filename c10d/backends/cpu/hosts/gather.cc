// Collectives that move blocks as they are.
#include <cstring>

#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/hosts/collectives.h>

namespace farspan::dist::cpu::hosts {
namespace {

// Those of the ranks of one host, by place.
std::vector<Block> blocks_of(const Layout& layout, int host, std::span<const Block> blocks) {
  std::vector<Block> chosen;
  for (const int rank : layout.ranks_on(host)) {
    chosen.push_back(blocks[static_cast<size_t>(rank)]);
  }
  return chosen;
}

// Calls body(rank) for those on other hosts.
template <class Body>
void for_each_far(const Meeting& meeting, const Body& body) {
  const Layout& layout = meeting.layout();
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host == meeting.host()) continue;
    for (const int rank : layout.ranks_on(host)) body(rank);
  }
}

size_t bytes_of_all(std::span<const Block> blocks, size_t element) noexcept {
  size_t bytes = 0;
  for (const Block& block : blocks) bytes += block.count * element;
  return bytes;
}

// Blocks one after the other, host by host.
class Pack {
 public:
  Pack(Meeting& meeting, std::span<const Block> out)
      : out_(out), meeting_(meeting), bytes_(meeting.memory(bytes_of_all(out, meeting.element()))) {
    for (int host = 0; host < meeting.layout().hosts(); ++host) {
      begin_.push_back(begin_.back() +
                       bytes_of_all(blocks_of(meeting.layout(), host, out), meeting.element()));
    }
  }

  std::span<std::byte> all() const noexcept { return bytes_; }
  std::span<std::byte> of(int host) const noexcept {
    const auto place = static_cast<size_t>(host);
    return bytes_.subspan(begin_[place], begin_[place + 1] - begin_[place]);
  }
  void put(int host) const {
    visit(host, [](std::span<std::byte> block, std::byte* packed) {
      std::memcpy(packed, block.data(), block.size());
    });
  }
  void take(int host) const {
    visit(host, [](std::span<std::byte> block, const std::byte* packed) {
      std::memcpy(block.data(), packed, block.size());
    });
  }

 private:
  template <class Visit>
  void visit(int host, const Visit& visit) const {
    std::byte* packed = of(host).data();
    for (const Block& block : blocks_of(meeting_.layout(), host, out_)) {
      const auto bytes = bytes_of(block, meeting_.element());
      if (!bytes.empty()) visit(bytes, packed);
      packed += bytes.size();
    }
  }

  const std::span<const Block> out_;
  const Meeting& meeting_;
  const std::span<std::byte> bytes_;
  std::vector<size_t> begin_{0};  // by host, and the end
};

void gather_here(Meeting& meeting, Block in, std::span<const Block> out) {
  const auto here = blocks_of(meeting.layout(), meeting.host(), out);
  if (meeting.is_alone_here()) return copy_own(in, here[0], meeting.element());
  host::all_gather(meeting.team(), meeting.within(), in, here);
}

// One step between hosts, that of the meeting: each lead sends its host's blocks to h - 1 others.
void all_gather_small(Meeting& meeting, Block in, std::span<const Block> out) {
  meeting.enter();
  gather_here(meeting, in, out);
  const Pack pack(meeting, out);
  if (meeting.is_lead()) {
    Exchange& exchange = meeting.exchange();
    pack.put(meeting.host());
    for (const int lead : meeting.other_leads()) exchange.send(lead, pack.of(meeting.host()));
    meeting.agree();
    for (const int lead : meeting.other_leads()) {
      exchange.receive(lead, pack.of(meeting.layout().seat(lead).host));
    }
    exchange.finish();
  }
  if (!meeting.is_alone_here()) {
    const auto all = pack.all();
    Call call = meeting.within();
    call.type = DType::UINT8;
    host::broadcast(meeting.team(), call, {all.data(), all.size()});
  }
  for (int host = 0; host < meeting.layout().hosts(); ++host) {
    if (host != meeting.host()) pack.take(host);
  }
}

// Tells each rank of another host what it will get.
//   throws  Error kShapeMismatch: it expects something else
void exchange_counts(Meeting& meeting, std::span<const Block> in, std::span<const Block> out) {
  struct Numbers {  // of elements
    uint64_t sent, expected;
  };
  const auto own = meeting.memory(out.size() * sizeof(Numbers));
  const auto theirs = meeting.memory(out.size() * sizeof(Numbers));
  const auto place_of = [](std::span<std::byte> all, int rank) {
    return all.subspan(static_cast<size_t>(rank) * sizeof(Numbers), sizeof(Numbers));
  };
  std::vector<Exchange::Ticket> arriving;
  for_each_far(meeting, [&](int rank) {
    const auto place = static_cast<size_t>(rank);
    const Numbers numbers{in[place].count, out[place].count};
    std::memcpy(place_of(own, rank).data(), &numbers, sizeof numbers);
    meeting.exchange().send(rank, place_of(own, rank));
    arriving.push_back(meeting.exchange().receive(rank, place_of(theirs, rank)));
  });
  meeting.exchange().wait(arriving);
  const auto compare = [&](int from, uint64_t sent, int to, uint64_t expected) {
    if (sent == expected) return;
    throw Error(Code::kShapeMismatch,
                describe_parts(meeting.name_of(from), sent, meeting.name_of(to), expected));
  };
  for_each_far(meeting, [&](int rank) {
    const auto place = static_cast<size_t>(rank);
    Numbers numbers{};
    std::memcpy(&numbers, place_of(theirs, rank).data(), sizeof numbers);
    compare(meeting.rank(), in[place].count, rank, numbers.expected);
    compare(rank, numbers.sent, meeting.rank(), out[place].count);
  });
}

}  // namespace

// Each rank sends its block to one rank of each other host, which shares it there: one step between
// hosts, in which it sends its own block h - 1 times.
void all_gather(Meeting& meeting, Block in, std::span<const Block> out) {
  const size_t element = meeting.element();
  if (bytes_of_all(out, element) <= meeting.tuning().hosts_small)
    return all_gather_small(meeting, in, out);
  meeting.meet();
  const Layout& layout = meeting.layout();
  const auto taker_of = [&](int rank) { return layout.seat(rank).place % meeting.team().size(); };
  for_each_far(meeting, [&](int rank) {
    if (taker_of(rank) != meeting.place()) return;
    meeting.exchange().receive(rank, bytes_of(out[static_cast<size_t>(rank)], element));
  });
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host == meeting.host()) continue;
    meeting.exchange().send(layout.at(host, meeting.place()), bytes_of(in, element));
  }
  gather_here(meeting, in, out);
  meeting.exchange().finish();
  if (meeting.is_alone_here()) return;
  for_each_far(meeting, [&](int rank) {
    const Block block = out[static_cast<size_t>(rank)];
    if (block.count > 0) host::broadcast(meeting.team(), meeting.within(taker_of(rank)), block);
  });
}

// One step between hosts: each rank of another one than the root's sends its block.
void gather(Meeting& meeting, Block in, std::span<const Block> out) {
  meeting.meet();
  const auto root = meeting.layout().seat(meeting.call().root());
  const auto own = bytes_of(in, meeting.element());
  if (root.host != meeting.host()) {
    meeting.exchange().send(meeting.call().root(), own);
  } else {
    const bool is_root = root.place == meeting.place();
    std::vector<Block> here;
    if (is_root) {
      here = blocks_of(meeting.layout(), meeting.host(), out);
      for_each_far(meeting, [&](int rank) {
        meeting.exchange().receive(rank,
                                   bytes_of(out[static_cast<size_t>(rank)], meeting.element()));
      });
    }
    if (meeting.is_alone_here()) {
      copy_own(in, here[0], meeting.element());
    } else {
      host::gather(meeting.team(), meeting.within(root.place), in, here);
    }
  }
  meeting.exchange().finish();
}

// One step between hosts: the root sends each rank of another host its block.
void scatter(Meeting& meeting, std::span<const Block> in, Block out) {
  meeting.meet();
  const auto root = meeting.layout().seat(meeting.call().root());
  if (root.host != meeting.host()) {
    meeting.exchange().receive(meeting.call().root(), bytes_of(out, meeting.element()));
  } else {
    const bool is_root = root.place == meeting.place();
    std::vector<Block> here;
    if (is_root) {
      here = blocks_of(meeting.layout(), meeting.host(), in);
      for_each_far(meeting, [&](int rank) {
        meeting.exchange().send(rank, bytes_of(in[static_cast<size_t>(rank)], meeting.element()));
      });
    }
    if (meeting.is_alone_here()) {
      copy_own(here[0], out, meeting.element());
    } else {
      host::scatter(meeting.team(), meeting.within(root.place), here, out);
    }
  }
  meeting.exchange().finish();
}

// Between hosts each block goes straight from rank to rank, and before it how large it is: two
// steps.
void all_to_all(Meeting& meeting, std::span<const Block> in, std::span<const Block> out) {
  meeting.meet();
  const size_t element = meeting.element();
  Exchange& exchange = meeting.exchange();
  exchange_counts(meeting, in, out);
  for_each_far(meeting, [&](int rank) {
    const Block from = in[static_cast<size_t>(rank)], to = out[static_cast<size_t>(rank)];
    auto bytes = bytes_of(from, element);
    if (from.data == to.data && !bytes.empty()) {  // what leaves must not be overwritten before
      const auto copy = meeting.memory(bytes.size());
      std::memcpy(copy.data(), bytes.data(), bytes.size());
      bytes = copy;
    }
    exchange.receive(rank, bytes_of(to, element));
    exchange.send(rank, bytes);
  });
  const auto from = blocks_of(meeting.layout(), meeting.host(), in);
  const auto to = blocks_of(meeting.layout(), meeting.host(), out);
  if (meeting.is_alone_here()) {
    copy_own(from[0], to[0], element);
  } else {
    host::all_to_all(meeting.team(), meeting.within(), from, to);
  }
  exchange.finish();
}

}  // namespace farspan::dist::cpu::hosts
