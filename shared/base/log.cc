#include "shared/base/log.h"

#include <memory>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace wsync {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

void append_json_string(spdlog::memory_buf_t& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20) {
      for (const char e : {'\\', 'u', '0', '0', kHex[byte >> 4U], kHex[byte & 15U]})
        out.push_back(e);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

// {"time":"2026-01-31T12:00:00.123Z","level":"info","role":"...","message":"..."}
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    using std::chrono::duration_cast;
    const auto since_epoch = msg.time.time_since_epoch();
    const auto ms = duration_cast<std::chrono::milliseconds>(since_epoch).count() % 1000;
    const std::time_t seconds = duration_cast<std::chrono::seconds>(since_epoch).count();
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char stamp[40];
    const std::size_t n = std::strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    fmt::format_to(std::back_inserter(out), "{{\"time\":\"{}.{:03}Z\",\"level\":\"{}\",\"role\":",
                   std::string_view(stamp, n), ms,
                   fmt::string_view(spdlog::level::to_string_view(msg.level).data()));
    append_json_string(out, std::string_view(msg.logger_name.data(), msg.logger_name.size()));
    for (const char c : std::string_view(",\"message\":")) out.push_back(c);
    append_json_string(out, std::string_view(msg.payload.data(), msg.payload.size()));
    for (const char c : std::string_view("}\n")) out.push_back(c);
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger =
      std::make_shared<spdlog::logger>(options.role.empty() ? "wsync" : options.role, sink);
  if (options.format == LogFormat::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern("%H:%M:%S.%e %-7l %n: %v");
  }
  logger->set_level(to_spdlog(options.level));
  return logger;
}

// Intentionally leaked: worker threads may log while static destructors run.
std::shared_ptr<spdlog::logger>& current() {
  static auto* logger = new std::shared_ptr<spdlog::logger>(make_logger({}));
  return *logger;
}

}  // namespace

std::mutex& log_mutex() noexcept {
  static auto* mutex = new std::mutex;  // leaked like the logger
  return *mutex;
}

void log_init(const LogOptions& options) {
  const std::lock_guard lock(log_mutex());
  current() = make_logger(options);
}

Result<LogLevel> parse_log_level(std::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "off") return LogLevel::kOff;
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("log level '{}' is unknown; expected debug, info, warning, error or off", text));
}

Result<LogFormat> parse_log_format(std::string_view text) {
  if (text == "human") return LogFormat::kHuman;
  if (text == "json") return LogFormat::kJson;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("log format '{}' is unknown; expected human or json", text));
}

bool log_enabled(LogLevel level) noexcept {
  const std::lock_guard lock(log_mutex());
  return current()->should_log(to_spdlog(level));
}

void log_write(LogLevel level, std::string_view message) {
  const std::lock_guard lock(log_mutex());
  current()->log(to_spdlog(level), "{}", message);
}

}  // namespace wsync
