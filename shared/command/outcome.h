// What a command has found.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shared/command/exit_code.h"

namespace wsync::cli {

// What a command found: `text` is printed for people, `result` with --json. A command that did its
// work and found something wrong (a mismatch) has an exit code of its own beside its result.
struct Outcome {
  nlohmann::json result = nlohmann::json::object();
  std::string text;
  std::string complaint;  // for standard error, not with --json
  ExitCode exit_code = kExitOk;
};

}  // namespace wsync::cli
