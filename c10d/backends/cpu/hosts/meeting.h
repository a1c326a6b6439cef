// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Meeting: one collective of a group whose ranks are on several hosts, as one of them takes part.
#pragma once

#include <span>
#include <vector>

#include <farspan/c10d/backends/blocks.h>
#include <farspan/c10d/backends/cpu/hosts/exchange.h>
#include <farspan/c10d/backends/cpu/hosts/layout.h>
#include <farspan/c10d/backends/cpu/team.h>
#include <farspan/c10d/backends/cpu/tuning.h>
#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/group/backend.h>
#include <farspan/c10d/net/memory_pool.h>

namespace farspan::dist::cpu::hosts {

// What a group of this kind consists of, for one rank.
struct Hosts {
  Team& team;  // the ranks of this host
  const Layout& layout;
  const Tuning& tuning;
  net::MemoryPool& scratch;
  Channel channel;
};

// One rank of each host, its lead, speaks for it until all agree on what is called.
//
// Methods throw what Backend says. Threading: one thread.
class Meeting {
 public:
  Meeting(const Hosts& hosts, const Call& call);

  Team& team() const noexcept { return hosts_.team; }
  const Layout& layout() const noexcept { return hosts_.layout; }
  const Tuning& tuning() const noexcept { return hosts_.tuning; }
  Exchange& exchange() noexcept { return exchange_; }
  const Call& call() const noexcept { return call_; }
  int rank() const noexcept { return hosts_.channel.spec->rank; }
  int host() const noexcept { return layout().own().host; }
  int place() const noexcept { return layout().own().place; }
  // "rank 3 (host:pid)", in the default group.
  const std::string& name_of(int rank) const {
    return (*hosts_.channel.names)[static_cast<size_t>(rank)];
  }
  bool is_alone_here() const noexcept { return team().size() == 1; }
  size_t element() const noexcept { return size_of(call_.type); }

  // Not initialised. Lives until all messages have ended, also after an error: what they carry
  // must.
  std::span<std::byte> memory(size_t bytes);

  bool is_lead() const noexcept { return place() == 0; }
  // The leads of the other hosts, in their order.
  const std::vector<int>& other_leads() const noexcept { return other_leads_; }

  // The ranks of this host have come and agree. Its lead tells the other hosts.
  void enter();
  // At the lead: those of the other hosts have come, and agree with it.
  void agree();
  // Both, and nobody goes on before.
  void meet();

  // The call as the ranks of this host make it among themselves, in a part of the collective.
  //   root  a place
  Call within(int root = 0) const;
  // What divides the sum of all ranks.
  int divisor() const noexcept {
    return call_.reduce() == ReduceOp::kAvg ? static_cast<int>(hosts_.channel.spec->size()) : 1;
  }

 private:
  const Hosts hosts_;
  const Call& call_;
  std::vector<Buffer> memory_;  // longer than the exchange
  Exchange exchange_;
  std::vector<int> other_leads_;
};

}  // namespace farspan::dist::cpu::hosts
