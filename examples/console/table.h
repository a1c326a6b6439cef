// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Table: names and values in two columns, and the one that closes a run.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "console/terminal.h"

namespace console {

// Threading: one thread at a time.
class Table {
 public:
  explicit Table(std::string title) : title_(std::move(title)) {}

  Table& row(std::string name, std::string value);

  // Names on the left, values on the right, under a line; each line ends with "\n".
  std::string text(const Terminal& terminal) const;

 private:
  std::string title_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

// What a run has to say at its end; what is not set is left out.
struct Summary {
  std::string title = "Result";
  std::optional<double> accuracy = {};       // 0 to 1, on the test images
  std::optional<double> samples_per_s = {};  // over the whole training
  std::optional<int64_t> rpcs = {};          // calls that were made, all workers together
  std::optional<double> bytes = {};          // that came to the workers
  std::optional<std::chrono::duration<double>> rpc_p50 = {};
  std::optional<std::chrono::duration<double>> rpc_p99 = {};
  std::optional<double> waiting = {};                      // 0 to 1, of the trainers' time
  std::optional<std::chrono::duration<double>> busy = {};  // processor time, all workers together
  std::optional<double> in_operators = {};                 // 0 to 1, of the busy time
  std::vector<std::pair<std::string, double>> operators = {};  // the largest; as in_operators
  std::optional<std::chrono::duration<double>> took = {};
  std::optional<std::string> curves = {};  // where the picture is
};

Table to_table(const Summary& summary);

// Writes it to standard output.
void print(const Table& table);
void print(const Summary& summary);

}  // namespace console
