#include <algorithm>

#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/hosts/collectives.h>

namespace farspan::dist::cpu::hosts {
namespace {

// Where a host gets the data from, and whom it hands them on to; hosts count from the root's.
struct Route {
  int from = -1;
  std::vector<int> to;
};

Route chain(int host, int hosts) {
  Route route;
  if (host > 0) route.from = host - 1;
  if (host + 1 < hosts) route.to.push_back(host + 1);
  return route;
}

// Binomial: the host whose number has `bit` as its lowest one gets them from that without it.
Route tree(int host, int hosts) {
  Route route;
  int bit = 1;
  while (bit < hosts && (host & bit) == 0) bit <<= 1;
  if (host > 0) route.from = host ^ bit;
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (host + bit < hosts) route.to.push_back(host + bit);
  }
  return route;
}

}  // namespace

// Between h hosts: up to 64 KiB log h steps, in which a host sends the data log h times at most;
// above h - 2 + pieces steps, in which each but the last sends them once.
void broadcast(Meeting& meeting, Block data) {
  meeting.meet();
  const Layout& layout = meeting.layout();
  const auto root = layout.seat(meeting.call().root());
  const int count = layout.hosts();
  const bool is_root_here = root.host == meeting.host();
  const int lead = is_root_here ? root.place : 0;
  const int turned = (meeting.host() - root.host + count) % count;
  const auto bytes = bytes_of(data, meeting.element());
  // A tree where each step costs a way through the network; else a chain, on which each host sends
  // the data once.
  const Route route =
      bytes.size() <= meeting.tuning().tree ? tree(turned, count) : chain(turned, count);
  const auto rank_of = [&](int host) {
    const int there = (host + root.host) % count;
    return there == root.host ? meeting.call().root() : layout.at(there, 0);
  };
  const host::Chunks pieces(data, meeting.element(), meeting.tuning().piece);
  Exchange& exchange = meeting.exchange();
  std::vector<Exchange::Ticket> arriving;
  if (meeting.place() == lead && route.from >= 0) {
    for (uint64_t k = 0; k < pieces.count(); ++k) {
      arriving.push_back(exchange.receive(rank_of(route.from), pieces[k]));
    }
  }
  for (uint64_t k = 0; k < pieces.count(); ++k) {
    const auto piece = pieces[k];
    if (meeting.place() == lead) {
      if (route.from >= 0) exchange.wait(arriving[k]);
      for (const int host : route.to) exchange.send(rank_of(host), piece);
    }
    if (!meeting.is_alone_here()) {
      host::broadcast(meeting.team(), meeting.within(lead),
                      {piece.data(), piece.size() / meeting.element()});
    }
  }
  exchange.finish();
}

// One step between hosts: the leads' signatures.
void barrier(Meeting& meeting) {
  meeting.meet();
  meeting.exchange().finish();
}

}  // namespace farspan::dist::cpu::hosts
