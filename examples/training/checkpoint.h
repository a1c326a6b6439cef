// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Checkpoint: a training run in a file, from which its ranks go on when they are started again, as
// many as before or others.
#pragma once

#include <cstdint>
#include <filesystem>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <farspan/c10d/ddp/distributed_sampler.h>

namespace checkpoint {

// What a run goes on from.
struct Run {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  farspan::dist::DistributedSampler& sampler;
  int64_t steps = 0;    // so far
  int64_t samples = 0;  // seen in them, by all ranks together
};

// Replaces the file: on one rank, between two steps. Who is killed meanwhile leaves the old one.
//   throws  farspan::Error kUnavailable: the file cannot be written
void save(const std::filesystem::path& file, const Run& run);

// Goes on from the newest file that a rank has under this name; the others get its bytes from
// there. Ranks of another start may lie on other hosts, so the writer may be any rank now, and the
// only one that has it. Call it on all ranks, before the module gets into a
// DistributedDataParallel. What the optimizer remembers of each parameter comes from the file; its
// options (learning rate, momentum) stay those that it was made with.
//   returns  whether there is one
//   throws   farspan::Error: kInvalidArgument (what is in it is not of this run), kUnavailable (it
//            cannot be read), and what collectives throw
bool resume(const std::filesystem::path& file, Run& run);

// How many steps are left in so many epochs, with as many ranks as there are now.
int64_t steps_left(const Run& run, int64_t epochs, int64_t batch_size);

}  // namespace checkpoint
