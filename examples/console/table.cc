#include "console/table.h"

#include <algorithm>
#include <cmath>

#include "console/format.h"

namespace console {

Table& Table::row(std::string name, std::string value) {
  rows_.emplace_back(std::move(name), std::move(value));
  return *this;
}

std::string Table::text(const Terminal& terminal) const {
  int64_t names = 0, values = 0;
  for (const auto& [name, value] : rows_) {
    names = std::max(names, width(name));
    values = std::max(values, width(value));
  }
  const int64_t line = std::max(names + 2 + values, width(title_));
  std::string text = styled(terminal, Style::kBold, title_) + "\n" +
                     styled(terminal, Style::kDim, repeat(terminal.unicode ? "─" : "-", line)) +
                     "\n";
  for (const auto& [name, value] : rows_) {
    text += name + pad_left(value, line - width(name)) + "\n";
  }
  return text;
}

Table to_table(const Summary& s) {
  Table table(s.title);
  if (s.accuracy) table.row("accuracy on the test images", percent(*s.accuracy, 2));
  if (s.samples_per_s) table.row("samples/s", count(std::llround(*s.samples_per_s)));
  if (s.rpcs) table.row("RPCs", count(*s.rpcs));
  if (s.bytes) table.row("bytes moved", bytes(*s.bytes));
  if (s.rpc_p50) table.row("RPC p50", duration(*s.rpc_p50));
  if (s.rpc_p99) table.row("RPC p99", duration(*s.rpc_p99));
  if (s.waiting) table.row("waiting for the other side", percent(*s.waiting));
  if (s.busy) table.row("processor time of all", duration(*s.busy));
  if (s.in_operators) table.row("in LibTorch's operators", percent(*s.in_operators));
  for (const auto& [name, share] : s.operators) table.row("  " + name, percent(share));
  if (s.took) table.row("time", duration(*s.took));
  if (s.curves) table.row("curves", *s.curves);
  return table;
}

void print(const Table& table) {
  const Terminal out = standard_output();
  out.write("\n" + table.text(out));
}

void print(const Summary& summary) { print(to_table(summary)); }

}  // namespace console
