#include "console/run_options.h"

#include <CLI/CLI.hpp>

#include "console/whole_file.h"

namespace console {

std::vector<std::string> RunOptions::transports() const {
  if (transport == "auto") return {};
  return {transport};
}

void say_errors_in_one_line(CLI::App& app) {
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string(error.what()) + " (--help lists the options)\n";
  });
}

CLI::Option* check_written(CLI::Option* option) {
  return option->check([](const std::string& file) { return why_not_written(file); });
}

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("--epochs", options.epochs, "passes over the images")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "images in one step")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "learning rate of SGD")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the weights and of the order of the images")
      ->capture_default_str();
  app.add_option("--images", options.images, "train, and test, on so many; fewer for a quick look")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  check_written(
      app.add_option("--curves", options.curves,
                     "where the picture of the run goes; its numbers, if it ends in .csv"))
      ->capture_default_str();
  say_errors_in_one_line(app);
}

void add_transport_option(CLI::App& app, RunOptions& options) {
  app.add_option("--transport", options.transport, "shm, unix, tcp, or the best one by itself")
      ->check(CLI::IsMember({"auto", "shm", "unix", "tcp"}))
      ->capture_default_str();
}

}  // namespace console
