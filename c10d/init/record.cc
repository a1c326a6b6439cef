#include <farspan/c10d/init/record.h>

#include <kj/encoding.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/store/launch_environment.h>

namespace farspan::dist {
namespace {

using std::chrono::seconds;

// Longer than torchrun pauses between two looks at its processes: 0.1 s, 5 s in older versions.
constexpr seconds kAfterTheCause{10};

struct Failure {
  std::string text;
  bool follows = false;  // from another rank's
};

Failure describe_failure(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const Code code = error.code();
    return {error.what(),
            code == Code::kDisconnected || code == Code::kCancelled || code == Code::kShutdown};
  } catch (...) {
    const Error error = to_error(failure);
    return {error.remote_type() + ": " + error.message()};
  }
}

// As JSON has text, in ASCII: torchrun, which falls over a byte that is no UTF-8, can read it in
// every locale.
std::string quoted(const std::string& text) {
  const auto units = kj::encodeUtf16(kj::arrayPtr(text.data(), text.size()));
  std::string result = "\"";
  for (const char16_t unit : units) {
    if (unit >= 0x20 && unit < 0x7f && unit != u'"' && unit != u'\\') {
      result += static_cast<char>(unit);
      continue;
    }
    const bool unsure = units.hadErrors && unit >= 0x80;  // half a character, perhaps
    char escaped[7];
    std::snprintf(escaped, sizeof escaped, "\\u%04x", unsure ? 0xfffdu : unsigned{unit});
    result += escaped;
  }
  return result + "\"";
}

std::string report_of(const Failure& failure) {
  auto time = std::chrono::system_clock::now();
  if (failure.follows) time += kAfterTheCause;
  const auto stamp = std::chrono::duration_cast<seconds>(time.time_since_epoch()).count();
  const std::string text = quoted(failure.text);
  // The table shows the call stack, which C++ does not keep with what is thrown.
  return R"({"message": {"message": )" + text + R"(, "extraInfo": {"py_callstack": )" + text +
         R"(, "timestamp": ")" + std::to_string(stamp) + "\"}}}\n";
}

// Complete or not at all: torchrun may end this process at any moment, and then reads the file.
void write_report(const std::string& file, const std::string& report) {
  const std::string part = file + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << report;
  out.close();
  if (!out) {
    throw Error(Code::kUnavailable, std::strerror(errno)).operation("write '" + part + "'");
  }
  std::filesystem::rename(part, file);
}

}  // namespace

void record_exception(const std::exception_ptr& failure) noexcept {
  try {
    const Failure found = describe_failure(failure);
    std::fprintf(stderr, "%s\n", found.text.c_str());
    const auto file = LaunchEnvironment::read().error_file;
    if (file) write_report(*file, report_of(found));
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "c10d/init",
        std::string("torchrun does not get to know of the failure: ") + error.what());
  }
}

}  // namespace farspan::dist
