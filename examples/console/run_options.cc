#include "console/run_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "console/whole_file.h"

namespace console {

std::vector<std::string> RunOptions::transports() const {
  if (transport == "auto") return {};
  return {transport};
}

namespace {

// What nobody asked for, and what may have been meant.
std::string unexpected(const CLI::App& app) {
  const std::string first = app.remaining().front();
  std::string text = "not expected: " + first;
  std::string nearest;
  ptrdiff_t longest = 3;  // letters that begin both, "--" among them
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const auto differ = std::mismatch(first.begin(), first.end(), name.begin(), name.end());
    const ptrdiff_t alike = differ.first - first.begin();
    if (alike > longest) longest = alike, nearest = name;
  }
  return nearest.empty() ? text : text + "; is " + nearest + " meant?";
}

}  // namespace

void say_errors_in_one_line(CLI::App& app) {
  app.failure_message([](const CLI::App* asked, const CLI::Error& error) {
    const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    const std::string what =
        is_extra && !asked->remaining().empty() ? unexpected(*asked) : std::string(error.what());
    return what + " (--help lists the options)\n";
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
      ->check([](const std::string& text) {
        char* end = nullptr;
        const double rate = std::strtod(text.c_str(), &end);
        const bool is_rate = *end == 0 && rate > 0 && std::isfinite(rate);
        return is_rate ? std::string() : "'" + text + "' is no number above 0";
      })
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

void add_device_option(CLI::App& app, RunOptions& options) {
  app.add_option("--device", options.device, "cpu or cuda, where a GPU is")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
}

void add_transport_option(CLI::App& app, RunOptions& options) {
  app.add_option("--transport", options.transport, "shm, unix, tcp, or the best one by itself")
      ->check(CLI::IsMember({"auto", "shm", "unix", "tcp"}))
      ->capture_default_str();
}

}  // namespace console
