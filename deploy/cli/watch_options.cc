#include "deploy/cli/watch_options.h"

#include <CLI/CLI.hpp>

#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::milliseconds kIntervalMin{100};
constexpr std::chrono::milliseconds kIntervalMax{3'600'000};

}  // namespace

void add_watch_interval(CLI::App& command, std::string& interval) {
  command.add_option("--interval", interval, "Time between two requests, 100ms to 1h")
      ->type_name("TIME")
      ->capture_default_str();
}

Result<std::chrono::milliseconds> parse_watch_interval(const std::string& text) {
  const auto interval = config::parse_duration(text);
  if (!interval) return fail(interval.error().with_context("--interval"));
  if (*interval >= kIntervalMin && *interval <= kIntervalMax) return *interval;
  return fail(ErrorCode::kInvalidInput,
              fmt::format("--interval: expected 100ms to 1h, found '{}'", text));
}

}  // namespace wsync::cli
