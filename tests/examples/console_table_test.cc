// The rules under test: examples/console/table.h.
#include "console/table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "examples/recorded_terminal.h"

namespace console {
namespace {

TEST(Table, AlignsNamesLeftAndValuesRight) {
  const RecordedTerminal plain;
  EXPECT_EQ(Table("Run").row("a", "1").row("long name", "1,234").text(plain.terminal),
            "Run\n"
            "----------------\n"
            "a              1\n"
            "long name  1,234\n");
}

TEST(Table, AlignsTextThatIsNotAscii) {
  const RecordedTerminal unicode({.unicode = true});
  EXPECT_EQ(Table("T").row("è", "─").row("ab", "cd").text(unicode.terminal),
            "T\n"
            "──────\n"
            "è    ─\n"
            "ab  cd\n");
}

TEST(Table, ColoursOnlyWhereTheTerminalHasThem) {
  const Table table = Table("Run").row("a", "1");
  EXPECT_EQ(table.text(RecordedTerminal().terminal).find('\x1b'), std::string::npos);
  EXPECT_EQ(table.text(RecordedTerminal({.color = true}).terminal).substr(0, 11),
            "\x1b[1mRun\x1b[0m");
}

TEST(Summary, SaysAllThatTheRunMeasured) {
  const Summary summary{.accuracy = 0.98234,
                        .samples_per_s = 2812.4,
                        .rpcs = 9471,
                        .bytes = 1.5 * 1024 * 1024 * 1024,
                        .rpc_p50 = std::chrono::microseconds(214),
                        .rpc_p99 = std::chrono::microseconds(3120),
                        .waiting = 0.1234,
                        .busy = std::chrono::milliseconds(81300),
                        .in_operators = 0.9376,
                        .operators = {{"convolution", 0.4512}, {"relu", 0.021}},
                        .took = std::chrono::milliseconds(42100),
                        .curves = "curves.svg"};
  const std::string text = to_table(summary).text(RecordedTerminal().terminal);
  for (const char* part :
       {"Result", "98.23 %", " 2,812", " 9,471", "1.50 GiB", "RPC p50", "214 us", "RPC p99",
        "3.12 ms", "12.3 %", "81.3 s", "operators", "93.8 %", "\n  convolution ", "45.1 %",
        "\n  relu ", "2.1 %", "42.1 s", "curves.svg"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(Summary, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(to_table({.rpcs = 7}).text(RecordedTerminal().terminal), "Result\n-------\nRPCs  7\n");
}

}  // namespace
}  // namespace console
