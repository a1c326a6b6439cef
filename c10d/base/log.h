// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Log: a few lines about what a person may want to act on; quiet in a healthy run.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace farspan {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Writes one line "farspan [room] text" when `level` is enabled. `room` names the folder.
// Threading: any thread. Never call it on a hot path.
void log(LogLevel level, std::string_view room, std::string_view text);

bool log_enabled(LogLevel level) noexcept;

// kWarning at start, or FARSPAN_LOG_LEVEL (debug, info, warning, error, off).
void set_log_level(LogLevel level) noexcept;

// Sends lines elsewhere; an empty sink restores standard error.
using LogSink = std::function<void(LogLevel, std::string_view room, std::string_view text)>;
void set_log_sink(LogSink sink);

}  // namespace farspan
