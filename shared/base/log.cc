#include "shared/base/log.h"

#include <cstdlib>
#include <memory>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "shared/base/log_writer.h"

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

// Intentionally leaked: worker threads may log while static destructors run.
LogWriter& writer() {
  static LogWriter* const writer = [] {
    std::atexit([] { log_flush(kLogFlush); });
    return new LogWriter(STDERR_FILENO);
  }();
  return *writer;
}

// Passes lines to the writer, and says how many it has dropped as soon as it takes a line again.
// Thread: any that holds log_mutex().
class QueueSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    if (dropped_ != 0 && put({msg.time, msg.source, msg.logger_name, spdlog::level::warn,
                              fmt::format("{} lines of this log were lost, because nothing read "
                                          "standard error",
                                          dropped_)}))
      dropped_ = 0;
    if (!put(msg)) ++dropped_;
  }
  void flush_() override {}

 private:
  bool put(const spdlog::details::log_msg& msg) {
    spdlog::memory_buf_t line;
    formatter_->format(msg, line);
    return writer().put({line.data(), line.size()});
  }

  std::uint64_t dropped_ = 0;
};

std::shared_ptr<spdlog::logger> make_logger(const LogOptions& options) {
  auto sink = std::make_shared<QueueSink>();
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

std::mutex& log_mutex() noexcept { return writer().mutex(); }

bool log_flush(std::chrono::milliseconds limit) noexcept {
  std::unique_lock lock(log_mutex());
  return writer().flush(lock, limit);
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
