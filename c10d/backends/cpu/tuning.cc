#include <farspan/c10d/backends/cpu/tuning.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <istream>
#include <iterator>
#include <ostream>

#include <farspan/c10d/base/error.h>

namespace farspan::dist::cpu {
namespace {

struct Setting {
  const char* name;
  uint64_t Tuning::*place;
  uint64_t least, most, unit;
};
constexpr uint64_t kLarge = uint64_t{1} << 40;
constexpr Setting kSettings[] = {
    {"FARSPAN_CPU_SMALL_BYTES", &Tuning::small, 0, uint64_t{8} << 10, 1},
    {"FARSPAN_CPU_HOSTS_SMALL_BYTES", &Tuning::hosts_small, 0, uint64_t{1} << 30, 1},
    {"FARSPAN_CPU_TREE_BYTES", &Tuning::tree, 0, kLarge, 1},
    {"FARSPAN_CPU_PIECE_BYTES", &Tuning::piece, 64, uint64_t{1} << 30, 64},
    {"FARSPAN_CPU_ATTACH_BYTES", &Tuning::attach, 0, kLarge, 1},
    {"FARSPAN_CPU_STRIPE_BYTES", &Tuning::stripe, 0, kLarge, 1},
    {"FARSPAN_CPU_STRIPES", &Tuning::stripes, 1, 16, 1},
};

bool fits(const Setting& setting, uint64_t value) noexcept {
  return value >= setting.least && value <= setting.most && value % setting.unit == 0;
}

}  // namespace

bool Tuning::is_valid() const noexcept {
  return std::all_of(std::begin(kSettings), std::end(kSettings),
                     [&](const Setting& one) { return fits(one, this->*one.place); });
}

Tuning Tuning::read() {
  return read_from([](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : "");
  });
}

Tuning Tuning::read_from(const Variables& variables) {
  Tuning tuning;
  for (const Setting& one : kSettings) {
    const std::string text = variables(one.name);
    if (text.empty()) continue;
    uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec != std::errc() || read.ptr != end || !fits(one, value)) {
      throw Error(Code::kInvalidArgument, std::string(one.name) + " is '" + text + "'")
          .advice(("give a multiple of " + std::to_string(one.unit) + " from " +
                   std::to_string(one.least) + " to " + std::to_string(one.most))
                      .c_str());
    }
    tuning.*one.place = value;
  }
  return tuning;
}

std::ostream& operator<<(std::ostream& out, const Tuning& tuning) {
  for (const Setting& one : kSettings) out << tuning.*one.place << " ";
  return out;
}

std::istream& operator>>(std::istream& in, Tuning& tuning) {
  for (const Setting& one : kSettings) in >> tuning.*one.place;
  return in;
}

}  // namespace farspan::dist::cpu
