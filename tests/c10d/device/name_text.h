// Names travel as text, in the environment and the output of processes.
#pragma once

#include <cstddef>
#include <string>

namespace farspan::testing {

template <class Name>
std::string text_of(const Name& name) {
  std::string text;
  for (const std::byte byte : name) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[static_cast<size_t>(byte) >> 4];
    text += kDigits[static_cast<size_t>(byte) & 15];
  }
  return text;
}
template <class Name>
Name name_of(const std::string& text) {
  Name name{};
  for (size_t i = 0; i < name.size() && 2 * i + 1 < text.size(); ++i) {
    name[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return name;
}

}  // namespace farspan::testing
