// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Terminal: where a program's output goes, and what may be sent there.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace console {

// Threading: a value; `write` may be called from any thread, one call at a time.
struct Terminal {
  std::function<void(std::string_view)> write;
  std::function<int()> columns;  // asked anew for every line: windows are resized
  bool interactive = false;      // a person watches, and "\r" goes back to the start of the line
  bool color = false;            // interactive, and NO_COLOR is not set (https://no-color.org)
  bool unicode = false;          // the locale says UTF-8
};

// The terminal or file behind a descriptor. Interactive when it is a terminal and TERM is set and
// not "dumb". Each `write` is one write(2) where the descriptor allows, so that a program which is
// killed leaves no half-written control sequence.
Terminal terminal(int descriptor);
Terminal standard_output();
Terminal standard_error();

// `text` in one of the terminal's colours; unchanged where colours are off. The style ends with
// the text.
enum class Style { kBold, kDim, kGreen, kCyan, kYellow, kMagenta, kBlue, kRed };
std::string styled(const Terminal& terminal, Style style, std::string_view text);

}  // namespace console
