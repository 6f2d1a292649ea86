// Options of the commands that poll (`top`, `status --watch`).
#pragma once

#include <chrono>
#include <string>

#include "shared/command/context.h"

namespace wsync::cli {

// Adds --interval, which is stored in `interval`. `interval` holds the default and must outlive the
// command.
void add_watch_interval(CLI::App& command, std::string& interval);
// Parses a duration such as "1s", from 100 ms to one hour; kInvalidInput otherwise.
[[nodiscard]] Result<std::chrono::milliseconds> parse_watch_interval(const std::string& text);

}  // namespace wsync::cli
