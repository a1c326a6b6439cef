// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RecordedTerminal: a terminal for tests that keeps what was written to it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "console/terminal.h"

namespace console {

// Threading: the terminal may be written to from any one thread at a time.
class RecordedTerminal {
 public:
  struct Kind {
    bool interactive = false, color = false, unicode = false;
    int columns = 80;
  };
  RecordedTerminal() : RecordedTerminal(Kind()) {}
  explicit RecordedTerminal(Kind kind) {
    terminal.write = [writes = writes_](std::string_view text) { writes->emplace_back(text); };
    terminal.columns = [columns = kind.columns] { return columns; };
    terminal.interactive = kind.interactive;
    terminal.color = kind.color;
    terminal.unicode = kind.unicode;
  }

  // One entry for each write.
  const std::vector<std::string>& writes() const { return *writes_; }
  std::string last() const { return writes_->empty() ? "" : writes_->back(); }
  std::string all() const {
    std::string text;
    for (const std::string& write : *writes_) text += write;
    return text;
  }

  Terminal terminal;

 private:
  std::shared_ptr<std::vector<std::string>> writes_ = std::make_shared<std::vector<std::string>>();
};

}  // namespace console
