// What the commands share that look again and again (`top`, `status --watch`).
#pragma once

#include <chrono>
#include <string>

#include "shared/command/context.h"

namespace wsync::cli {

// Adds --interval, whose text goes to `interval`, which outlives the command and holds the default.
void add_watch_interval(CLI::App& command, std::string& interval);
// "1s" and the like, 100 ms to an hour; kInvalidInput otherwise.
[[nodiscard]] Result<std::chrono::milliseconds> parse_watch_interval(const std::string& text);

}  // namespace wsync::cli
