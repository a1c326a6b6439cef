// The rules under test: examples/training/checkpoint.h. Ranks that are killed: elastic_*_test.py.
#include "training/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "c10d/store/temporary_folder.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace checkpoint {
namespace {

using farspan::Code;
using farspan::Error;
using farspan::dist::DistributedSampler;
using farspan::testing::error_of;
using farspan::testing::run_on_fake_ranks;
using farspan::testing::TemporaryFolder;
using ::testing::HasSubstr;

// A rank that trains, alone if nobody averages its gradients.
struct Trainer {
  explicit Trainer(int replicas = 1, int rank = 0, uint64_t seed = 1)
      : optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        sampler(20, {.replicas = replicas, .rank = rank, .seed = seed}),
        run{*net, optimizer, sampler} {
    const at::NoGradGuard none;
    for (const at::Tensor& parameter : net->parameters()) parameter.fill_(float(seed));
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const std::vector<size_t> batch = sampler.next(2).value();
      const at::Tensor inputs = at::tensor(std::vector<double>(batch.begin(), batch.end()));
      optimizer.zero_grad();
      net->forward(inputs.to(at::kFloat).view({-1, 1})).sin().sum().backward();
      optimizer.step();
      run.steps += 1, run.samples += std::ssize(batch);
    }
  }
  std::string weights() const {
    std::string all;
    for (const at::Tensor& parameter : net->parameters()) {
      all.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
    }
    return all;
  }

  const std::shared_ptr<torch::nn::LinearImpl> net = std::make_shared<torch::nn::LinearImpl>(1, 3);
  torch::optim::SGD optimizer;
  DistributedSampler sampler;
  Run run;
};

TEST(Checkpoint, ARunGoesOnAsIfNothingHadHappened) {
  const TemporaryFolder folder;
  run_on_fake_ranks(1, [&](int) {
    Trainer whole, before, after;
    whole.train(7);
    before.train(3);
    save(folder.file("run"), before.run);
    EXPECT_TRUE(resume(folder.file("run"), after.run));
    EXPECT_EQ(after.run.steps, 3);
    after.train(4);
    EXPECT_EQ(after.weights(), whole.weights());
    EXPECT_EQ(after.run.steps, whole.run.steps);
    EXPECT_EQ(after.run.samples, whole.run.samples);
    save(folder.file("run"), after.run);
  });
  const std::filesystem::directory_iterator files(folder.path()), end;
  EXPECT_EQ(std::distance(files, end), 1) << "it leaves nothing beside it";
}

TEST(Checkpoint, TheOptimizersOptionsAreThoseOfThisStart) {
  const TemporaryFolder folder;
  run_on_fake_ranks(1, [&](int) {
    using torch::optim::SGDOptions;
    Trainer before, after;
    before.train(3);
    save(folder.file("run"), before.run);
    const auto options = [](Trainer& trainer) -> SGDOptions& {
      return static_cast<SGDOptions&>(trainer.optimizer.param_groups()[0].options());
    };
    options(after).lr(0.025).momentum(0.5);
    EXPECT_TRUE(resume(folder.file("run"), after.run));
    EXPECT_EQ(options(after).lr(), 0.025);
    EXPECT_EQ(options(after).momentum(), 0.5);
    // But not what it remembers.
    options(before).lr(0.025).momentum(0.5);
    before.train(2), after.train(2);
    EXPECT_EQ(after.weights(), before.weights());
  });
}

TEST(Checkpoint, AllRanksGoOnFromTheNewestThatOneOfThemHas) {
  const TemporaryFolder folder;  // a file for each rank, as if they had hosts of their own
  Trainer old, newest;
  old.train(2);
  newest.train(4);
  save(folder.file("0"), old.run);
  save(folder.file("2"), newest.run);
  run_on_fake_ranks(3, [&](int rank) {
    Trainer trainer(3, rank);
    EXPECT_TRUE(resume(folder.file(std::to_string(rank)), trainer.run));
    EXPECT_EQ(trainer.run.steps, 4);
    EXPECT_EQ(trainer.run.samples, 8);
    EXPECT_EQ(trainer.weights(), newest.weights());
    EXPECT_EQ(trainer.sampler.state().taken, 8u);
    EXPECT_EQ(trainer.sampler.left(), 4u) << "a third of the rest";
  });
}

TEST(Checkpoint, ARunWithoutAFileBegins) {
  const TemporaryFolder folder;
  run_on_fake_ranks(2, [&](int rank) {
    Trainer trainer(2, rank);
    EXPECT_FALSE(resume(folder.file("none"), trainer.run));
    EXPECT_FALSE(resume("", trainer.run));
    EXPECT_EQ(trainer.run.steps, 0);
  });
}

TEST(Checkpoint, WhatIsNoCheckpointIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string empty = folder.file("empty");
  std::ofstream(empty).flush();
  for (const std::string& file : {empty, std::string("/dev/zero"), folder.file("")}) {
    run_on_fake_ranks(1, [&](int) {
      Trainer trainer;
      const Error error = error_of([&] { resume(file, trainer.run); });
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("read '" + file + "'"));
    });
  }
}

TEST(Checkpoint, OfAnotherRunIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string file = folder.file("run");
  Trainer trainer;
  save(file, trainer.run);
  run_on_fake_ranks(1, [&](int) {
    Trainer other_seed(1, 0, 2);
    const Error error = error_of([&] { resume(file, other_seed.run); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("resume from '" + file + "': saved with seed 1"));

    std::filesystem::resize_file(file, 500);
    const Error cut = error_of([&] { resume(file, trainer.run); });
    EXPECT_EQ(cut.code(), Code::kInvalidArgument);
    EXPECT_THAT(cut.what(), HasSubstr("no checkpoint of this program"));
  });
  EXPECT_EQ(error_of([&] { save(file + "/in/a/file", trainer.run); }).code(), Code::kUnavailable);
}

TEST(Checkpoint, KnowsHowManyStepsAreLeft) {
  Trainer trainer(3, 1);  // 7 of 20 in each epoch
  EXPECT_EQ(steps_left(trainer.run, 2, 2), 8);
  trainer.train(1);
  EXPECT_EQ(steps_left(trainer.run, 2, 2), 7);
  trainer.sampler.load_state({.epoch = 1, .taken = 11});
  EXPECT_EQ(steps_left(trainer.run, 2, 2), 2) << "of 9 examples 3 for each rank";
  EXPECT_EQ(steps_left(trainer.run, 1, 2), 0) << "more epochs than asked for";
}

}  // namespace
}  // namespace checkpoint
