#include <farspan/c10d/group/subgroups.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include <farspan/c10d/group/collectives.h>

namespace farspan::dist {
namespace {

Group parent_of(const SubgroupOptions& options, const char* operation) {
  return group_or_default(options.parent, operation);
}

[[noreturn]] void refuse(const char* operation, const std::string& what, const char* advice) {
  throw Error(Code::kInvalidArgument, what).operation(operation).advice(advice);
}

// Also those lists that this rank is not in: the others must come to the same.
void check_lists(const char* operation, const std::vector<std::vector<int>>& lists,
                 const std::vector<int>& all) {
  if (lists.empty()) refuse(operation, "no group was named", "give the ranks of at least one");
  std::set<int> seen;
  for (const auto& list : lists) {
    if (list.empty()) refuse(operation, "a group has no ranks", "leave it out");
    for (const int rank : list) {
      const std::string who = "rank " + std::to_string(rank);
      if (std::find(all.begin(), all.end(), rank) == all.end()) {
        refuse(operation, who + " is not one of the parent's",
               "name ranks of the parent, as they count in the default group");
      }
      if (seen.insert(rank).second) continue;
      refuse(operation, who + " was named twice",
             "give each rank to one group; new_group() makes others");
    }
  }
}

}  // namespace

Group split_group(int color, int key, const SubgroupOptions& options) {
  const Group parent = parent_of(options, "split_group");
  const at::Tensor own = at::tensor({int64_t{color}, int64_t{key}});
  const at::Tensor all = at::empty({parent->size(), 2}, at::kLong);
  all_gather_into_tensor(all, own, {.group = parent, .timeout = options.timeout});
  std::vector<std::tuple<int64_t, int>> members, others;  // by key, and then by rank
  for (int rank = 0; rank < parent->size(); ++rank) {
    auto& list = all[rank][0].item<int64_t>() == color ? members : others;
    list.emplace_back(all[rank][1].item<int64_t>(), rank);
  }
  // A group of others says so when it is used; where there are none, all have declined.
  const bool declines = color < 0;
  auto& chosen = declines && !others.empty() ? others : members;
  std::sort(chosen.begin(), chosen.end());
  std::vector<int> ranks;
  for (const auto& [at, rank] : chosen) ranks.push_back(parent->global_rank(rank));
  if (!declines) return new_group_of(parent, ranks, options.timeout);
  return std::make_shared<ProcessGroup>(
      GroupSpec{parent->name() + "/of others", ranks, -1, "a group of others"},
      parent->own_global_rank(), nullptr, parent->timeout());
}

Group split_group(const std::vector<std::vector<int>>& split_ranks,
                  const SubgroupOptions& options) {
  const Group parent = parent_of(options, "split_group");
  check_lists("split_group", split_ranks, parent->ranks());
  const auto own = std::find_if(split_ranks.begin(), split_ranks.end(), [&](const auto& list) {
    return std::find(list.begin(), list.end(), parent->own_global_rank()) != list.end();
  });
  return new_group_of(parent, own == split_ranks.end() ? split_ranks.front() : *own,
                      options.timeout);
}

Subgroups new_subgroups(int group_size, const SubgroupOptions& options) {
  const std::vector<int>& ranks = parent_of(options, "new_subgroups")->ranks();
  if (group_size <= 0 || ranks.size() % static_cast<size_t>(group_size) != 0) {
    refuse(
        "new_subgroups",
        std::to_string(ranks.size()) + " ranks do not make groups of " + std::to_string(group_size),
        "give a size that divides the number of ranks, or new_subgroups_by_enumeration()");
  }
  std::vector<std::vector<int>> lists;
  for (auto at = ranks.begin(); at != ranks.end(); at += group_size) {
    lists.emplace_back(at, at + group_size);
  }
  return new_subgroups_by_enumeration(lists, options);
}

Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup_list,
                                       const SubgroupOptions& options) {
  const Group parent = parent_of(options, "new_subgroups_by_enumeration");
  check_lists("new_subgroups_by_enumeration", ranks_per_subgroup_list, parent->ranks());
  Subgroups groups;
  for (const auto& ranks : ranks_per_subgroup_list) {
    groups.all.push_back(new_group_of(parent, ranks, options.timeout));
    if (groups.all.back()->rank() >= 0) groups.own = groups.all.back();
  }
  if (!groups.own) groups.own = groups.all.front();
  return groups;
}

}  // namespace farspan::dist
