// The order of additions: within each host that of its ranks, then that of the hosts.
#include <algorithm>
#include <cstring>

#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/hosts/collectives.h>
#include <farspan/c10d/backends/kernels/reduce.h>

namespace farspan::dist::cpu::hosts {
namespace {

using host::Chunks;
using Tickets = std::vector<Exchange::Ticket>;

// Where what comes from each other host waits for its addition.
class Places {
 public:
  Places(Meeting& meeting, size_t bytes)
      : bytes_(bytes),
        memory_(meeting.memory(static_cast<size_t>(meeting.layout().hosts()) * bytes)) {}
  std::span<std::byte> of(size_t host, size_t bytes) const noexcept {
    return memory_.subspan(host * bytes_, bytes);
  }

 private:
  size_t bytes_;
  std::span<std::byte> memory_;
};

// own = the sum over all hosts; of the others' parts in `places`.
void add(Meeting& meeting, std::span<std::byte> own, const Places& places) {
  std::vector<const std::byte*> in;
  for (int host = 0; host < meeting.layout().hosts(); ++host) {
    in.push_back(host == meeting.host() ? own.data()
                                        : places.of(static_cast<size_t>(host), 0).data());
  }
  kernels::reduce(meeting.call().type, meeting.call().reduce(), own.data(), in,
                  own.size() / meeting.element(), meeting.divisor());
}

// One step between hosts, that of the meeting: each lead sends its host's sum to the h - 1 others.
void all_reduce_small(Meeting& meeting, Block data) {
  const auto bytes = bytes_of(data, meeting.element());
  meeting.enter();
  if (!meeting.is_alone_here()) host::reduce(meeting.team(), meeting.within(), data);
  if (meeting.is_lead()) {
    for (const int lead : meeting.other_leads()) meeting.exchange().send(lead, bytes);
    meeting.agree();
    const Places places(meeting, bytes.size());
    Tickets tickets;
    for (const int lead : meeting.other_leads()) {
      const auto host = static_cast<size_t>(meeting.layout().seat(lead).host);
      tickets.push_back(meeting.exchange().receive(lead, places.of(host, bytes.size())));
    }
    meeting.exchange().finish();  // those who read `data` have it now
    add(meeting, bytes, places);
  }
  if (!meeting.is_alone_here()) host::broadcast(meeting.team(), meeting.within(), data);
}

// Over the ranks of one lane: each host adds one part of the block, and sends it to all. While one
// piece is added, the next is on its way: pieces + 1 steps. Each rank sends (h-1)/h of the block as
// inputs, and as much as sums.
void all_reduce_in_lane(Meeting& meeting, Block block) {
  const Layout& layout = meeting.layout();
  const auto hosts = static_cast<size_t>(layout.hosts()),
             self = static_cast<size_t>(meeting.host());
  const auto parts = split(block, hosts, meeting.element());
  const auto piece = [&](size_t host, uint64_t k) {
    return Chunks(parts[host], meeting.element(), meeting.tuning().piece)[k];
  };
  uint64_t pieces = 0;  // the same on all hosts
  for (const Block& part : parts) {
    pieces = std::max(pieces, Chunks(part, meeting.element(), meeting.tuning().piece).count());
  }
  const auto for_each_other = [&](const auto& body) {
    for (size_t host = 0; host < hosts; ++host) {
      if (host != self) body(host, layout.at(static_cast<int>(host), meeting.place()));
    }
  };
  const size_t room = std::min(parts[self].count * meeting.element(), meeting.tuning().piece);
  const Places places[2] = {{meeting, room}, {meeting, room}};
  Tickets arriving[2];
  Exchange& exchange = meeting.exchange();
  for (uint64_t k = 0; k <= pieces; ++k) {
    if (k < pieces) {
      for_each_other([&](size_t host, int rank) {
        exchange.send(rank, piece(host, k));
        const auto own = places[k % 2].of(host, piece(self, k).size());
        arriving[k % 2].push_back(exchange.receive(rank, own));
      });
    }
    if (k == 0) continue;
    const auto own = piece(self, k - 1);
    exchange.wait(arriving[(k - 1) % 2]);
    add(meeting, own, places[(k - 1) % 2]);
    // Who sends its result has all that this rank has sent of that piece: it may be written now.
    for_each_other([&](size_t host, int rank) {
      exchange.send(rank, own);
      exchange.receive(rank, piece(host, k - 1));
    });
  }
  exchange.finish();
}

// What the ranks of this host have for those of another, place by place, goes there as sums.
void send_sums(Meeting& meeting, std::span<const Block> in, int host) {
  const Layout& layout = meeting.layout();
  const int here = layout.places_on(meeting.host());
  for (int first = 0; first < layout.places_on(host); first += here) {
    std::vector<Block> blocks(static_cast<size_t>(here));
    for (int i = 0; i < here && first + i < layout.places_on(host); ++i) {
      blocks[static_cast<size_t>(i)] = in[static_cast<size_t>(layout.at(host, first + i))];
    }
    const int place = first + meeting.place();
    const Block own = blocks[static_cast<size_t>(meeting.place())];
    if (meeting.is_alone_here()) {
      meeting.exchange().send(layout.at(host, place), bytes_of(own, meeting.element()));
      continue;
    }
    const auto sum = meeting.memory(own.count * meeting.element());
    host::reduce_scatter(meeting.team(), meeting.within(), blocks, {sum.data(), own.count});
    if (place < layout.places_on(host)) meeting.exchange().send(layout.at(host, place), sum);
  }
}

}  // namespace

// Of l lanes each moves 1/l of the data between hosts, so a host sends 2(h-1)/h of them.
void all_reduce(Meeting& meeting, Block data) {
  if (data.count * meeting.element() <= meeting.tuning().hosts_small)
    return all_reduce_small(meeting, data);
  meeting.meet();
  if (meeting.is_alone_here()) return all_reduce_in_lane(meeting, data);
  // Each lane has its part.
  const auto lanes = static_cast<size_t>(meeting.layout().lanes());
  auto parts = split(data, lanes, meeting.element());
  parts.resize(static_cast<size_t>(meeting.team().size()));
  const Block own = parts[static_cast<size_t>(meeting.place())];
  host::reduce_scatter(meeting.team(), meeting.within(), parts, own);
  if (own.count > 0) all_reduce_in_lane(meeting, own);
  host::all_gather(meeting.team(), meeting.within(), own, parts);
  meeting.exchange().finish();
}

// Piece by piece: the leads send their hosts' sums to the root, each of them all of the data once.
void reduce(Meeting& meeting, Block data) {
  meeting.meet();
  const Layout& layout = meeting.layout();
  const auto root = layout.seat(meeting.call().root());
  const bool is_root = meeting.call().root() == meeting.rank();
  const bool is_root_here = root.host == meeting.host();
  const int lead = is_root_here ? root.place : 0;
  const Chunks pieces(data, meeting.element(), meeting.tuning().piece);
  const size_t room = std::min(data.count * meeting.element(), meeting.tuning().piece);
  const Places places[2] = {{meeting, room}, {meeting, room}};
  Tickets under_way[2];
  Exchange& exchange = meeting.exchange();
  for (uint64_t k = 0; k <= pieces.count(); ++k) {
    if (k < pieces.count()) {
      std::span<std::byte> piece = pieces[k];
      Tickets& tickets = under_way[k % 2];
      if (!is_root_here && meeting.place() == lead) {  // its data stay as they are
        exchange.wait(tickets);
        const auto sum = places[k % 2].of(0, piece.size());
        std::memcpy(sum.data(), piece.data(), piece.size());
        piece = sum;
      }
      if (!meeting.is_alone_here()) {
        host::reduce(meeting.team(), meeting.within(lead),
                     {piece.data(), piece.size() / meeting.element()});
      }
      if (!is_root_here && meeting.place() == lead) {
        tickets.push_back(exchange.send(meeting.call().root(), piece));
      }
      for (int host = 0; host < layout.hosts() && is_root; ++host) {
        if (host == meeting.host()) continue;
        tickets.push_back(exchange.receive(
            layout.at(host, 0), places[k % 2].of(static_cast<size_t>(host), piece.size())));
      }
    }
    if (k == 0 || !is_root) continue;
    exchange.wait(under_way[(k - 1) % 2]);
    add(meeting, pieces[k - 1], places[(k - 1) % 2]);
  }
  exchange.finish();
}

// One step between hosts: for each rank of another host one sum goes there, so where all hosts have
// as many ranks, each sends h - 1 parts.
void reduce_scatter(Meeting& meeting, std::span<const Block> in, Block out) {
  meeting.meet();
  const Layout& layout = meeting.layout();
  const size_t bytes = out.count * meeting.element();
  const Places places(meeting, bytes);
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host != meeting.host()) send_sums(meeting, in, host);
  }
  std::vector<Block> own(static_cast<size_t>(meeting.team().size()));
  for (size_t i = 0; i < own.size(); ++i) {
    own[i] = in[static_cast<size_t>(layout.at(meeting.host(), static_cast<int>(i)))];
  }
  if (meeting.is_alone_here()) {
    copy_own(own[0], out, meeting.element());
  } else {
    host::reduce_scatter(meeting.team(), meeting.within(), own, out);
  }
  for (int host = 0; host < layout.hosts(); ++host) {
    if (host == meeting.host()) continue;
    meeting.exchange().receive(layout.at(host, meeting.place()),
                               places.of(static_cast<size_t>(host), bytes));
  }
  meeting.exchange().finish();
  add(meeting, bytes_of(out, meeting.element()), places);
}

}  // namespace farspan::dist::cpu::hosts
