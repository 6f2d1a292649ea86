// The result of a command.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "shared/command/exit_code.h"

namespace wsync::cli {

// The result of a command. `text` is printed for people, `result` with --json. A command that
// completed its work but found a problem (such as a mismatch) sets an exit code beside its result.
struct Outcome {
  nlohmann::json result = nlohmann::json::object();
  std::string text;
  std::string complaint;  // for standard error; not printed with --json
  ExitCode exit_code = kExitOk;
};

}  // namespace wsync::cli
