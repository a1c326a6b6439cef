// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RunOptions: what every example that trains lets its user choose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace console {

struct RunOptions {
  int epochs = 1;
  int64_t batch_size = 64;
  double lr = 0.1;
  uint64_t seed = 1;
  int64_t images = 60'000;  // to train on; as many at most for the test
  std::string transport = "auto";
  std::string device = "cpu";
  std::string curves = "curves.svg";

  // As farspan::WorkerOptions::transports has it.
  std::vector<std::string> transports() const;
};

// What is wrong on the command line is said in one line.
void say_errors_in_one_line(CLI::App& app);
// --epochs, --batch-size, --lr, --seed, --images and --curves, with checks, as above.
void add_run_options(CLI::App& app, RunOptions& options);
// Of an option that names a file to write at the end: one that cannot be is refused at once.
CLI::Option* check_written(CLI::Option* option);
// --device, for those that can train on GPUs.
void add_device_option(CLI::App& app, RunOptions& options);
// --transport, for those that call other workers.
void add_transport_option(CLI::App& app, RunOptions& options);

}  // namespace console
