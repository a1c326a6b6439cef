#include <farspan/c10d/ddp/join_round.h>

namespace farspan::dist {
namespace {

std::string describe(int step) {
  if (step == kJoined) return "has no inputs left";
  if (step & kReduce) return "reduces gradients";
  std::string text = "runs a forward pass";
  if (step & kRebuild) text += " that rebuilds the buckets";
  if (step & kBuffers) text += " that broadcasts buffers";
  return text;
}

}  // namespace

int JoinRound::hear(const std::vector<int>& steps) {
  std::string joined;
  int with_inputs = 0, step = kJoined, leader = -1;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    const int its = steps[rank];
    if (its == kJoined) {
      joined += (joined.empty() ? "" : ", ") + std::to_string(rank);
      continue;
    }
    ++with_inputs;
    if (leader < 0) {
      leader = static_cast<int>(rank);
      step = its;
    }
    if (its == step) continue;
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(rank) + " " + describe(its) +
                                            ", and rank " + std::to_string(leader) + " " +
                                            describe(step))
        .operation("DistributedDataParallel join")
        .advice("run the same passes on all ranks that have inputs left");
  }
  if (with_inputs == 0) return kJoined;
  leader_ = leader;
  with_inputs_ = with_inputs;
  if (options_.throw_on_early_termination && !joined.empty()) {
    terminated_ = true;
    throw Error(Code::kCancelled, "no inputs are left on rank " + joined)
        .operation("DistributedDataParallel join")
        .advice("end the loop on all ranks, or unset throw_on_early_termination");
  }
  return step;
}

}  // namespace farspan::dist
