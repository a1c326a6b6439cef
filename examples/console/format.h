// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Format: numbers as a person reads them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace console {

std::string count(int64_t n);                             // 1,234,567
std::string count(int64_t n, std::string_view what);      // 1 rank, 2 ranks
std::string bytes(double n);                              // 812 B, 4.00 KiB, 1.31 GiB
std::string percent(double share, int decimals = 1);      // 0.9812 -> 98.1 %
std::string clock_time(std::chrono::duration<double> d);  // 0:42, 1:02:03; --:-- for infinity

// "218 us", "12.3 ms", "4.20 s".
std::string duration(std::chrono::duration<double> d);

// The columns that UTF-8 text takes on a terminal: its code points.
int64_t width(std::string_view text);

// `text` with spaces on its right or left up to `columns`; longer text is kept whole.
std::string pad_right(std::string_view text, int64_t columns);
std::string pad_left(std::string_view text, int64_t columns);

// The first `columns` of `text`.
std::string cut(std::string_view text, int64_t columns);

// `text` many times over.
std::string repeat(std::string_view text, int64_t times);

}  // namespace console
