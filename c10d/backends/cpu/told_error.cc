#include <farspan/c10d/backends/cpu/told_error.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace farspan::dist::cpu {
namespace {

template <size_t kSize>
void write(std::array<char, kSize>& place, const std::string& text) noexcept {
  std::memcpy(place.data(), text.data(), std::min(text.size(), kSize - 1));
}

template <size_t kSize>
std::string read(const std::array<char, kSize>& place) {
  return std::string(place.data(), strnlen(place.data(), kSize));
}

}  // namespace

ToldError ToldError::of(const Error& error) noexcept {
  ToldError told;
  told.code = static_cast<uint16_t>(error.code());
  write(told.message, error.message());
  write(told.worker, error.worker());
  write(told.advice, error.advice());
  return told;
}

Error ToldError::error() const {
  return Error(code_from_wire(code), read(message)).worker(read(worker)).advice(read(advice));
}

}  // namespace farspan::dist::cpu
