#include <farspan/c10d/base/log.h>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include <farspan/c10d/base/mutex.h>

namespace farspan {
namespace {

LogLevel level_from_environment() noexcept {
  const char* text = std::getenv("FARSPAN_LOG_LEVEL");
  const std::string_view wanted = text ? text : "warning";
  if (wanted == "debug") return LogLevel::kDebug;
  if (wanted == "info") return LogLevel::kInfo;
  if (wanted == "error") return LogLevel::kError;
  if (wanted == "off") return LogLevel::kOff;
  if (wanted != "warning") {
    std::fprintf(stderr,
                 "farspan: FARSPAN_LOG_LEVEL is '%s', and should be debug, info, warning, error or "
                 "off; taken as warning\n",
                 text);
  }
  return LogLevel::kWarning;
}

std::atomic<LogLevel>& threshold() noexcept {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

struct SinkSlot {
  Mutex mutex;
  std::shared_ptr<const LogSink> sink FARSPAN_GUARDED_BY(mutex);
};

SinkSlot& slot() {
  static SinkSlot* slot = new SinkSlot;  // never destroyed: threads may log while the process ends
  return *slot;
}

void write_to_stderr(LogLevel level, std::string_view room, std::string_view text) {
  static spdlog::logger* const logger = [] {  // never destroyed, for the same reason
    auto* made =
        new spdlog::logger("farspan", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %P farspan %^%l%$ %v");
    return made;
  }();
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  logger->log(kLevels[static_cast<int>(level)], "[{}] {}", room, text);
}

}  // namespace

bool log_enabled(LogLevel level) noexcept {
  return level >= threshold().load(std::memory_order_relaxed);
}

void set_log_level(LogLevel level) noexcept { threshold().store(level); }

void set_log_sink(LogSink sink) {
  auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
  MutexLock lock(slot().mutex);
  slot().sink = std::move(shared);
}

void log(LogLevel level, std::string_view room, std::string_view text) {
  if (level == LogLevel::kOff || !log_enabled(level)) return;
  std::shared_ptr<const LogSink> sink;
  {
    MutexLock lock(slot().mutex);
    sink = slot().sink;
  }
  sink ? (*sink)(level, room, text) : write_to_stderr(level, room, text);
}

}  // namespace farspan
