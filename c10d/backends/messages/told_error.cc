#include <farspan/c10d/backends/messages/told_error.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace farspan::dist::messages {
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

std::string ToldError::text() const {
  return std::string(reinterpret_cast<const char*>(this), sizeof *this);
}

Error ToldError::from(std::span<const std::byte> bytes) {
  ToldError told;
  if (bytes.size() != sizeof told) throw Error(Code::kCorrupt, "a failure that is none");
  std::memcpy(&told, bytes.data(), sizeof told);
  return told.error();
}

}  // namespace farspan::dist::messages
