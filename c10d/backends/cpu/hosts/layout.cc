#include <farspan/c10d/backends/cpu/hosts/layout.h>

#include <algorithm>
#include <map>

namespace farspan::dist::cpu::hosts {

Layout::Layout(const std::vector<std::string>& host_of, int rank) {
  std::map<std::string, int> known;
  for (size_t one = 0; one < host_of.size(); ++one) {
    const auto [host, is_new] = known.emplace(host_of[one], hosts());
    if (is_new) ranks_.emplace_back();
    auto& ranks = ranks_[static_cast<size_t>(host->second)];
    seats_.push_back({host->second, static_cast<int>(ranks.size())});
    ranks.push_back(static_cast<int>(one));
  }
  own_ = seat(rank);
  lanes_ = places_on(0);
  for (int host = 1; host < hosts(); ++host) lanes_ = std::min(lanes_, places_on(host));
}

}  // namespace farspan::dist::cpu::hosts
