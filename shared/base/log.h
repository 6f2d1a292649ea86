// Logging: one process-wide sink on standard error, as human lines or JSON lines. A thread writes
// the lines (LogWriter), so that logging never waits for whoever reads standard error.
// Thread: every function may be called from any thread after log_init.
#pragma once

#include <chrono>
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "shared/base/error.h"

namespace wsync {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : std::uint8_t { kHuman, kJson };

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kHuman;
  std::string role;  // printed with every line, e.g. "sidecar host0"
};

// Configures the sink. It may be called again (tests do).
void log_init(const LogOptions& options);
// Accepts "debug", "info", "warning", "error" and "off". Anything else is kInvalidInput, and the
// sentence names the choices.
[[nodiscard]] Result<LogLevel> parse_log_level(std::string_view text);
// Accepts "human" and "json".
[[nodiscard]] Result<LogFormat> parse_log_format(std::string_view text);
// Returns whether a line of this level would be written.
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
// How long a process that ends waits for whoever reads its log.
inline constexpr std::chrono::milliseconds kLogFlush{1'000};
// Waits until every line was written, at most for `limit`. Returns whether it was. Call it before
// something else is written to standard error that is to come after the lines. A process that ends
// by exit() or by returning from main() has called it.
bool log_flush(std::chrono::milliseconds limit) noexcept;
// Mutex of the logger. fork() holds it too, so that a child finds the sink unlocked.
[[nodiscard]] std::mutex& log_mutex() noexcept;
// Writes one line.
void log_write(LogLevel level, std::string_view message);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kDebug))
    log_write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kInfo))
    log_write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kWarning))
    log_write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(LogLevel::kError))
    log_write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace wsync
