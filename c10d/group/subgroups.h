// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// A group's ranks in several groups.
// Source: PyTorch's split_group, new_subgroups and new_subgroups_by_enumeration; MPI's
// MPI_Comm_split.
//
// Ranks in arguments count in the default group.
//
// Threading: as new_group().
#pragma once

#include <optional>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/process_group.h>

namespace farspan::dist {

struct SubgroupOptions {
  Group parent = nullptr;              // null: the default group
  std::optional<Millis> timeout = {};  // of its operations; absent: the parent's
};

// The group of all ranks that have called it with the same color, in the order of their keys, and
// of their ranks in the parent where those are equal. All of the parent's ranks call it.
//   color    below zero: the group that is returned has no ranks but others'
//   returns  a group; get_rank() of it is -1 on a rank with a color below zero
//   throws   as collectives
Group split_group(int color, int key = 0, const SubgroupOptions& options = {});

// The group of the list that this rank is in, or one of which it is no member. Costs no message,
// and only the members of a list need call it, with the same list.
//   throws  Error kInvalidArgument: a list is empty, a rank is in none of the parent's or in two
Group split_group(const std::vector<std::vector<int>>& split_ranks,
                  const SubgroupOptions& options = {});

struct Subgroups {
  Group own;  // of this rank; one in which get_rank() is -1 where it is in none
  std::vector<Group> all;
};
// The parent's ranks in their order, `group_size` in each.
//   throws  Error kInvalidArgument: `group_size` does not divide the number of ranks
Subgroups new_subgroups(int group_size, const SubgroupOptions& options = {});
// A group for each list.
//   throws  as split_group()
Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup_list,
                                       const SubgroupOptions& options = {});

}  // namespace farspan::dist
