// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Layout: which ranks of a group share which host.
#pragma once

#include <string>
#include <vector>

namespace farspan::dist::cpu::hosts {

// Hosts count in the order of their first ranks, and the ranks of one in their own order: a rank's
// place. Everything here is the same on all ranks, but for `own`.
//
// Threading: constant once made.
class Layout {
 public:
  struct Seat {
    int host, place;
  };

  //   host_of  of each rank; equal for ranks that share one
  //   rank     this one
  Layout(const std::vector<std::string>& host_of, int rank);

  int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks_on(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int places_on(int host) const { return static_cast<int>(ranks_on(host).size()); }
  Seat seat(int rank) const { return seats_[static_cast<size_t>(rank)]; }
  Seat own() const noexcept { return own_; }
  // How many ranks each host has at least: so many can exchange data side by side.
  int lanes() const noexcept { return lanes_; }
  // The rank of a host that stands for `place`, of which it may have fewer.
  int at(int host, int place) const {
    return ranks_on(host)[static_cast<size_t>(place % places_on(host))];
  }

 private:
  std::vector<std::vector<int>> ranks_;  // by host and place
  std::vector<Seat> seats_;              // by rank
  Seat own_;
  int lanes_;
};

}  // namespace farspan::dist::cpu::hosts
