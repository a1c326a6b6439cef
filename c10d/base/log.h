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

// kWarning at start, or FARSPAN_LOG_LEVEL (debug, info, warning, error, off). For the whole
// process. Threading: any thread.
void set_log_level(LogLevel level) noexcept;

// Sends lines elsewhere, those of the whole process; an empty sink restores standard error.
//
// Threading: any thread. The sink runs in whatever thread has something to say, in several at once,
//            and under no lock of the log; it must neither throw nor block for long. One that was
//            replaced may still be running.
using LogSink = std::function<void(LogLevel, std::string_view room, std::string_view text)>;
void set_log_sink(LogSink sink);

}  // namespace farspan
