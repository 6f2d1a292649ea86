#include "shared/command/context.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/command/outcome.h"
#include "shared/config/log_config.h"
#include "shared/config/sources.h"

namespace wsync::cli {
namespace {

Result<LogOptions> log_options(const CommonOptions& options, std::string_view command) {
  const auto level = WSYNC_TRY(parse_log_level(options.log_level));
  const auto format = WSYNC_TRY(parse_log_format(options.log_format));
  return LogOptions{.level = level, .format = format, .role = std::string(command)};
}

void add_common_options(CLI::App& app, CommonOptions& options) {
  app.add_flag("--json", options.json, "Print one JSON object (schemas: deploy/cli/schema)");
  app.add_option_function<std::string>(
         "--log-level",
         [&options](const std::string& text) {
           options.log_level = text;
           options.log_level_given = true;
         },
         "debug, info, warning, error or off (default: info)")
      ->type_name("LEVEL");
  app.add_option_function<std::string>(
         "--log-format",
         [&options](const std::string& text) {
           options.log_format = text;
           options.log_format_given = true;
         },
         "human or json (default: human)")
      ->type_name("FORMAT");
}

}  // namespace

void print_line(std::FILE* stream, std::string_view text) {
  if (text.empty()) return;
  std::string line(text);
  if (line.back() != '\n') line += '\n';
  // One call for the whole line, because other threads print lines as well.
  std::fwrite(line.data(), 1, line.size(), stream);
  std::fflush(stream);
}

std::string to_line(const nlohmann::json& object) {
  // Replaces bytes that are not UTF-8 (in file names), because dump() would throw on them.
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ExitCode exit_code_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidInput:
    case ErrorCode::kNotFound:
      return kExitBadInput;
    case ErrorCode::kBusy:
    case ErrorCode::kDeadline:
    case ErrorCode::kPeerLost:
      return kExitUnreachable;
    case ErrorCode::kCancelled:
      return kExitInterrupted;
    case ErrorCode::kRefused:
    case ErrorCode::kFenced:
    case ErrorCode::kDigestMismatch:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
    case ErrorCode::kPartial:
      return kExitFailed;
  }
  return kExitFailed;
}

nlohmann::json error_json(std::string_view command, const Error& error) {
  return {{"command", command},
          {"ok", false},
          {"error", {{"code", error_code_name(error.code())}, {"message", error.message()}}}};
}

void Context::run(std::string_view command, const std::function<Result<Outcome>()>& body) {
  Result<Outcome> outcome = fail(ErrorCode::kInternal, "the command did not run");
  if (const Result<LogOptions> log = log_options(options, command); !log) {
    outcome = fail(log.error());
  } else {
    log_init(*log);
    outcome = body();
  }
  log_flush(kLogFlush);  // the outcome is the last that the command says
  if (!outcome) {
    exit_code_ = exit_code_of(outcome.error().code());
    if (options.json)
      print_line(stdout, to_line(error_json(command, outcome.error())));
    else
      print_line(stderr, fmt::format("wsync {}: {}", command, outcome.error().message()));
    return;
  }
  exit_code_ = outcome->exit_code;
  if (options.json) {
    print_line(stdout, to_line({{"command", command},
                                {"ok", outcome->exit_code == kExitOk},
                                {"result", std::move(outcome->result)}}));
  } else {
    print_line(stdout, outcome->text);
    print_line(stderr, outcome->complaint);
  }
}

void Context::configure_log(std::string_view role, const config::LogConfig& config) {
  Result<LogOptions> log = log_options(options, role);
  if (!log) return;  // run() has already refused it
  if (!options.log_level_given) log->level = config.level;
  if (!options.log_format_given) log->format = config.format;
  log_init(*log);
  for (const std::string& sentence : config::unknown_variables(config::process_environment()))
    log_warning("{}", sentence);
}

CLI::App* add_command(CLI::App& parent, Context& context, const CommandText& text) {
  CLI::App* app = parent.add_subcommand(text.name, text.description);
  add_common_options(*app, context.options);
  std::string footer = "Examples:";
  for (const std::string_view example : text.examples) footer += "\n  " + std::string(example);
  app->footer(footer);
  return app;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace wsync::cli
