// The exit codes of all programs.
#pragma once

#include "shared/base/error.h"

namespace wsync::cli {

// Exit codes, documented in deploy/cli/README.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,       // a check, a verification or an update failed; refused
  kExitBadInput = 2,     // arguments, config or checkpoint break a rule
  kExitUnreachable = 3,  // no peer, or no answer before the deadline
  kExitInterrupted = 130,
};
[[nodiscard]] ExitCode exit_code_of(ErrorCode code) noexcept;

}  // namespace wsync::cli
